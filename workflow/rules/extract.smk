# Measure one cell: its statistics, as a zarr store.
rule extract:
    input:
        needs(PLAN.cells),
    output:
        place("extract"),
    log:
        log_file("extract"),
    benchmark:
        benchmark_file("extract")
    wildcard_constraints:
        address="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(PLAN.cells),
        runtime=minutes(PLAN.cells),
        gpu=GPU,
    params:
        spec=specification(PLAN.cells),
        results=results_folder,
        device=DEVICE,
    message:
        "extract {wildcards.address}"
    shell:
        "widthlab extract --address {wildcards.address:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --spec {params.spec:q} > {log:q} 2>&1"
