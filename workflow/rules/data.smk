# Prepare a data set once: download or decode it, choose the split, record both.
rule data:
    input:
        needs(PLAN.data),
    output:
        place("data"),
    log:
        log_file("data"),
    benchmark:
        benchmark_file("data")
    wildcard_constraints:
        address="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(PLAN.data),
        runtime=minutes(PLAN.data),
    params:
        spec=specification(PLAN.data),
        results=results_folder,
        device=DEVICE,
    message:
        "data {wildcards.address}"
    shell:
        "widthlab data --address {wildcards.address:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --spec {params.spec:q} > {log:q} 2>&1"
