# Collect an experiment's cells: fits, theory and claims.
rule sweep:
    input:
        needs("sweep"),
    output:
        touch(receipt("sweep")),
    log:
        log_file("sweep"),
    benchmark:
        benchmark_file("sweep")
    wildcard_constraints:
        job="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: threads_of("sweep")
    resources:
        mem_mb=memory("sweep"),
        runtime=minutes("sweep"),
    params:
        work=specification("sweep"),
        results=results_folder,
        device=DEVICE,
    message:
        "sweep {wildcards.job}"
    shell:
        "widthlab sweep {params.work:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --log {log:q}"
