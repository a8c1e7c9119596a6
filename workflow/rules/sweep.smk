# Collect an experiment's cells: fits, theory and claims.
rule sweep:
    input:
        needs(PLAN.sweeps),
    output:
        place("sweep"),
    log:
        log_file("sweep"),
    benchmark:
        benchmark_file("sweep")
    wildcard_constraints:
        address="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(PLAN.sweeps),
        runtime=minutes(PLAN.sweeps),
    params:
        spec=specification(PLAN.sweeps),
        results=results_folder,
        device=DEVICE,
    message:
        "sweep {wildcards.address}"
    shell:
        "widthlab sweep --address {wildcards.address:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --spec {params.spec:q} > {log:q} 2>&1"
