#!/bin/sh
# status.sh JOB: print running, success or failed, as the scheduler has it. A job that it has
# forgotten counts as failed: tried again, it finds what is done.
job=$1
if command -v squeue >/dev/null; then
    state=$(squeue --noheader --states=all --format=%T --jobs="$job" 2>&1) || case $state in
    *'Invalid job id'*) state= ;;
    *) # no answer for now
        echo running
        exit
        ;;
    esac
    # With accounting, also after the queue has forgotten the job.
    [ -n "$state" ] || state=$(sacct -X --noheader --format=State --jobs="$job" 2>/dev/null)
    case $state in
    COMPLETED*) echo success ;;
    PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | PREEMPTED* | REQUEUE*) echo running ;;
    *) echo failed ;;
    esac
elif command -v bjobs >/dev/null; then
    case $(bjobs -noheader -o stat "$job" 2>/dev/null) in
    DONE) echo success ;;
    PEND | PSUSP | RUN | USUSP | SSUSP | WAIT) echo running ;;
    *) echo failed ;;
    esac
elif command -v qacct >/dev/null; then
    if qstat -j "$job" >/dev/null 2>&1; then
        echo running
    elif qacct -j "$job" 2>/dev/null | grep -Eq '^exit_status +0 *$'; then
        echo success
    else
        echo failed
    fi
else
    state=$(qstat -x -f "$job" 2>/dev/null | tr -d ' ')
    case $state in
    *job_state=F*Exit_status=0*) echo success ;;
    *job_state=F* | '') echo failed ;;
    *) echo running ;;
    esac
fi
