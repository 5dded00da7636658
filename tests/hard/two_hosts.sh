#!/bin/bash
# Two machines with two ranks each, as network namespaces of this one (needs root and `ip`): the scripts of
# recipes/cluster train over a network of their own, one rank is killed, one machine loses its network, and Slurm is
# played by a shell function.
#
#   tests/hard/two_hosts.sh FOLDER      FOLDER is made; the clearhead that is run is the one in PATH and PYTHONPATH
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=1 HOSTS=2 RANKS=2 HEAD=10.77.0.1 CLUSTER="$here/recipes/cluster" CLEARHEAD_HANG_SECONDS=30

for n in 1 2; do ip netns add "host$n"; done
ip link add wire1 type veth peer name wire2
for n in 1 2; do
    ip link set "wire$n" netns "host$n"
    ip -n "host$n" addr add "10.77.0.$n/24" dev "wire$n"
    ip -n "host$n" link set "wire$n" up
    ip -n "host$n" link set lo up
done
trap 'for n in 1 2; do ip netns del "host$n" || true; done' EXIT

at() { # N command…: on machine N
    local n=$1
    shift
    ADDRESS="10.77.0.$n" GLOO_SOCKET_IFNAME="wire$n" ip netns exec "host$n" "$@"
}
both() { # name, command…: on both machines, and wait; what they say goes to name.1 and name.2
    local name=$1
    shift
    at 1 "$@" >"$name.1" 2>&1 & local first=$!
    at 2 "$@" >"$name.2" 2>&1 & local second=$!
    local code=0
    wait $first || code=$?
    wait $second || code=$?
    return $code
}

python3 - <<'PYTHON'
import random
chance = random.Random(1)
words = "the a cat dog bird house tree sees eats likes old green small two red".split()
with open("pairs.tsv", "w") as file:
    for _ in range(400):
        line = [chance.choice(words) for _ in range(chance.randint(2, 7))]
        print(" ".join(line), " ".join(reversed(line)).upper(), sep="\t", file=file)
PYTHON
settings=(
    --view plain --set steps=60 --set tokenizer.vocabulary=320 --set model.width=16 --set model.layers=1
    --set model.attention.heads=2 --set model.feedforward.width=32 --set batch.tokens=256 --set batch.accumulate=4
    --set schedule.warmup=2 --set validation.every=20 --set validation.decode=4 --set saving.every=5
    --set compute.device=cpu --set saving.tensorboard=false --set compute.layout=fsdp
)
train=(train --file pairs.tsv "${settings[@]}")

echo "== undisturbed"
both whole "$CLUSTER/hosts.sh" "${train[@]}" --out whole

echo "== one rank of machine 2 is killed; torchrun starts all of them again"
(
    until ls killed/training/checkpoints/step-* >/dev/null 2>&1; do sleep 0.2; done
    kill -9 "$(ip netns pids host2 | while read -r p; do grep -lz '^LOCAL_RANK=1$' "/proc/$p/environ"; done 2>/dev/null |
        head -n 1 | cut -d/ -f3)"
) &
both killed "$CLUSTER/hosts.sh" "${train[@]}" --out killed
cmp whole/training/log.jsonl killed/training/log.jsonl
cmp whole/model.safetensors killed/model.safetensors
grep -h "clearhead: Rank" killed.1 killed.2 || true

echo "== machine 2 loses its network; the run is resumed on machine 1 alone"
(
    until ls lost/training/checkpoints/step-* >/dev/null 2>&1; do sleep 0.2; done
    ip -n host2 link set wire2 down
) &
begin=$SECONDS
# torchrun itself asks its store once more when it is told to stop, and waits: hence the kill
RESTARTS=0 both lost timeout --kill-after 5 90 "$CLUSTER/hosts.sh" "${train[@]}" --out lost && exit 1
echo "ended after $((SECONDS - begin)) s, within which torchrun had to be killed"
grep -h "clearhead: Rank" lost.1
grep -h "clearhead: Rank" lost.2
ip -n host2 link set wire2 up
HOSTS=1 RANKS=2 at 1 "$CLUSTER/hosts.sh" train --resume lost --view plain >resumed.1 2>&1
test -f lost/model.safetensors

echo "== Slurm, played"
mkdir -p bin
printf '#!/bin/sh\nprintf "10.77.0.1\\n10.77.0.2\\n"\n' >bin/scontrol
cat >bin/srun <<'SH'
#!/bin/bash
shift
for n in 1 2; do
    ADDRESS="10.77.0.$n" GLOO_SOCKET_IFNAME="wire$n" ip netns exec "host$n" "$@" >"slurm.$n" 2>&1 &
done
wait
SH
chmod +x bin/*
PATH="$PWD/bin:$PATH" SLURM_JOB_NODELIST=x SLURM_NNODES=2 SLURM_JOB_ID=7 "$CLUSTER/slurm.sh" "${train[@]}" --out slurm
cmp whole/model.safetensors slurm/model.safetensors
echo "all as it should be"
