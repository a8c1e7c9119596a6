#!/bin/sh
# properties = {properties}
# A scheduler that stops a job tells all its processes. This one must outlive those that save.
trap : TERM
{exec_job}
