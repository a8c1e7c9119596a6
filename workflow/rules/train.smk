# Train one network to a checkpoint; a killed run goes on from its scratch state.
rule train:
    input:
        needs(PLAN.checkpoints),
    output:
        place("train"),
    log:
        log_file("train"),
    benchmark:
        benchmark_file("train")
    wildcard_constraints:
        address="[a-z0-9-]+",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=memory(PLAN.checkpoints),
        runtime=minutes(PLAN.checkpoints),
        gpu=GPU,
    params:
        spec=specification(PLAN.checkpoints),
        results=results_folder,
        device=DEVICE,
    message:
        "train {wildcards.address}"
    shell:
        "widthlab train --address {wildcards.address:q} --results {params.results:q}"
        " --device {params.device:q} --threads {threads} --spec {params.spec:q} > {log:q} 2>&1"
