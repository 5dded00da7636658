#!/bin/sh
# Train on several machines: start this on each of them, with the same arguments.
#
#   HEAD=10.0.0.1 HOSTS=2 RANKS=8 recipes/cluster/hosts.sh train --source a.en --target a.de \
#       --out /shared/run --set compute.layout=fsdp
#
# HEAD      address of one of the machines, which the others can reach
# HOSTS     how many machines there are
# RANKS     processes on each of them; gpu: one for each GPU
# PORT      of the meeting at HEAD (29400)
# RESTARTS  how often ranks that died are started again (3)
# ADDRESS   of this machine, where its host name does not lead there
#
# Where a machine has several networks, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the one to use. All machines
# must see the run's folder under the same name.
set -eu
: "${HEAD:?give the address of one of the machines}" "${HOSTS:?give the number of machines}"

# Who keeps the meeting is told by host names, or by ADDRESS where these do not lead to the machines.
keeps=""
if [ -n "${ADDRESS:-}" ]; then
    keeps="--local-addr $ADDRESS --rdzv-conf is_host=$([ "$ADDRESS" = "$HEAD" ] && echo 1 || echo 0)"
fi

# Machines that start again must not find addresses of the start before: every start has a store of its own.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# shellcheck disable=SC2086
exec torchrun \
    --nnodes "$HOSTS" \
    --nproc-per-node "${RANKS:-gpu}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$HEAD:${PORT:-29400}" \
    --rdzv-id "${RUN:-clearhead}" \
    --max-restarts "${RESTARTS:-3}" \
    $keeps \
    -m clearhead "$@"
