# Train one network to a checkpoint; a killed run goes on from its scratch state.
rule train:
    input:
        needs("train"),
    output:
        touch(receipt("train")),
    log:
        log_file("train"),
    benchmark:
        benchmark_file("train")
    wildcard_constraints:
        job="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: threads_of("train")
    resources:
        mem_mb=memory("train"),
        runtime=minutes("train"),
        gpu=gpus("train"),
    params:
        work=specification("train"),
        results=results_folder,
        device=DEVICE,
    message:
        "train {wildcards.job}"
    shell:
        "widthlab train {params.work:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --log {log:q}"
