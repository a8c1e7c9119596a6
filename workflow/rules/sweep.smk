# Collect an experiment's cells: fits, theory and claims.
rule sweep:
    input:
        needs(PLAN.sweeps),
    output:
        place("sweep"),
    params:
        spec=specification(PLAN.sweeps),
        results=str(PLAN.results),
        device=DEVICE,
    wildcard_constraints:
        address="[a-z0-9-]+",
    log:
        log_file("sweep"),
    benchmark:
        benchmark_file("sweep")
    threads: 1
    resources:
        mem_mb=memory(PLAN.sweeps),
        runtime=minutes(PLAN.sweeps),
    message:
        "sweep {wildcards.address}"
    shell:
        "widthlab sweep --address {wildcards.address:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --spec {params.spec:q} > {log:q} 2>&1"
