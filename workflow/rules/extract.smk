# Measure one cell: its statistics, as a zarr store.
rule extract:
    input:
        needs("extract"),
    output:
        touch(receipt("extract")),
    log:
        log_file("extract"),
    benchmark:
        benchmark_file("extract")
    wildcard_constraints:
        job="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: threads_of("extract")
    resources:
        mem_mb=memory("extract"),
        runtime=minutes("extract"),
        gpu=gpus("extract"),
    params:
        work=specification("extract"),
        results=results_folder,
        device=DEVICE,
    message:
        "extract {wildcards.job}"
    shell:
        "widthlab extract {params.work:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --log {log:q}"
