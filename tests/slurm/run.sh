#!/usr/bin/env bash
# A sweep of two points through the real Slurm of the distribution on this one machine, with a job put back into the queue in
# the middle of its training. Needs root, the packages slurm-wlm and munge, and the extra `submitit`; skips with its reason, and
# status 77, where one of them is absent. Daemons that it started are stopped in the end.
#
#   tests/slurm/run.sh [PYTHON]
set -euo pipefail
python=${1:-.venv/bin/python}
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

skip() { echo "skipped: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root, for the daemons"
for program in munged slurmctld slurmd sbatch scontrol; do
    PATH=$PATH:/usr/sbin command -v $program > /dev/null || skip "$program is not installed: apt-get install slurm-wlm munge"
done
"$python" -c "import hydra_plugins.hydra_submitit_launcher" 2> /dev/null || skip "hydra-submitit-launcher is not installed"
PATH=$PATH:/usr/sbin
folder=$(mktemp -d) && export SLURM_CONF=$folder/slurm.conf
started=()
stop() {
    if [ "${#started[@]}" -gt 0 ]; then kill "${started[@]}" 2> /dev/null || true; fi
    [ "${KEEP:-}" ] && echo "kept: $folder" || rm -rf "$folder"
}
trap stop EXIT

mkdir -p "$folder"/{state,spool} && chmod 755 "$folder"
sed -e "s|NAME|$(hostname -s)|; s|FOLDER|$folder|; s|CPUS|$(nproc)|" \
    -e "s|MEMORY|$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)|" tests/slurm/slurm.conf.in > "$SLURM_CONF"
munge -n > /dev/null 2>&1 || {
    mkdir -p /run/munge && chown munge: /run/munge
    setpriv --reuid=munge --regid=munge --clear-groups munged --foreground > "$folder/munged.log" 2>&1 & started+=($!)
    for _ in $(seq 50); do munge -n > /dev/null 2>&1 && break; sleep 0.2; done
}
slurmctld -D > "$folder/ctld.out" 2>&1 & started+=($!)
slurmd -D > "$folder/slurmd.out" 2>&1 & started+=($!)
for _ in $(seq 100); do sinfo -h -o %t 2> /dev/null | grep -q idle && break; sleep 0.3; done
sinfo

state() { squeue -h -a -o "%i %T" 2> /dev/null; }
"$python" run.py -m hydra/launcher=submitit_slurm hydra.launcher.gpus_per_node=0 hydra.launcher.cpus_per_task=1 \
    hydra.launcher.mem_gb=2 hydra.launcher.timeout_min=30 sparsity=0.5,0.75 pattern=n_m trainer=cpu measure.device=cpu \
    measure.evaluate_limit=64 logger=none report.html=false report.plot=false recipe.epochs=6 recipe.recovery_epochs=6 \
    results_dir="$folder/results" cache_dir="$folder/cache" > "$folder/sweep.log" 2>&1 & sweep=$!
for _ in $(seq 600); do  # until a training has an epoch to go on from
    ls "$folder"/cache/*/*.unfinished/epoch.ckpt "$folder"/cache/*/*.unfinished/*/epoch.ckpt > "$folder/epochs" 2> /dev/null && break
    kill -0 $sweep 2> /dev/null || break
    [ -s "$folder/epochs" ] && break
    sleep 0.2
done
[ -s "$folder/epochs" ] || { echo "no epoch was kept"; tail -40 "$folder/sweep.log"; exit 1; }
for log in "$folder"/results/*/.submitit/*/*_log.out; do grep -l "dense: training" "$log" || true; done > "$folder/trains"
job=$(basename "$(head -1 "$folder/trains")" | sed 's/_[0-9]*_log.out$//')
echo "put back into the queue: $job"
scontrol requeue "$job"
for _ in $(seq 40); do  # Slurm holds a requeued job back for two minutes
    scontrol update JobId="$job" StartTime=now 2> /dev/null || true
    sleep 3
    state | grep -q RUNNING && break
done
wait $sweep || { tail -60 "$folder/sweep.log"; exit 1; }
rows=$(ls "$folder"/results/*/*/row.json | wc -l)
went_on=$(cat "$folder"/results/*/.submitit/*/*_log.out | grep -c "going on after epoch" || true)
left=$(find "$folder/cache" -name "*.leases" | wc -l)
echo "rows: $rows of 2; trainings that went on after an epoch: $went_on; leases left: $left"
[ "$rows" = 2 ] && [ "$went_on" -ge 1 ] && [ "$left" = 0 ]
