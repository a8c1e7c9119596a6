# Prepare a data set once: download or decode it, choose the split, record both.
rule data:
    input:
        needs("data"),
    output:
        touch(receipt("data")),
    log:
        log_file("data"),
    benchmark:
        benchmark_file("data")
    wildcard_constraints:
        job="[a-z0-9-]+",
    localrule: given_nothing("data")
    conda:
        ENVIRONMENT
    threads: threads_of("data")
    resources:
        mem_mb=memory("data"),
        runtime=minutes("data"),
    params:
        work=specification("data"),
        results=results_folder,
        device=DEVICE,
    message:
        "data {wildcards.job}"
    shell:
        "widthlab data {params.work:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --log {log:q}"
