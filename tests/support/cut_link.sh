# Joins two networks by a link, lets two ranks work together over it, cuts it, and says what they returned. Prints "cannot
# make a link" where the machine allows none. To be run in a network of its own, as its root.
# usage: [MPIRUN="mpirun ..."] cut_link.sh watch|sum PROGRAM FOLDER
what=$1 program=$2 folder=$3
ip link set lo up
unshare -n sleep 60 &
other=$!
for i in $(seq 50); do
  [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ] || break
  sleep 0.1
done
if ! { ip link add here type veth peer name there && ip link set there netns $other &&
       ip addr add 10.77.0.1/24 dev here && ip link set here up &&
       nsenter -t $other -n sh -c 'ip addr add 10.77.0.2/24 dev there && ip link set there up'; }; then
  echo "cannot make a link"
  kill $other
  exit
fi

if [ "$what" = watch ]; then
  export WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
  RANK=0 "$program" rank watch "$folder" &
  jobs=$!
  RANK=1 nsenter -t $other -n "$program" rank watch "$folder" &
  jobs="$jobs $!"
else
  # Everything goes over the link, also what mpirun has to say to its processes.
  export PMIX_MCA_ptl_base_if_include=here PMIX_MCA_ptl_base_remote_connections=1
  export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=10.77.0.0/24
  $MPIRUN -np 1 "$program" rank sum "$folder" : -np 1 nsenter -t $other -n "$program" rank sum "$folder" &
  jobs=$!
fi
for i in $(seq 200); do
  if [ -s "$folder/rank-0" ] && [ -s "$folder/rank-1" ]; then
    echo "both have met"
    break
  fi
  sleep 0.1
done
ip link set here down
for job in $jobs; do
  wait $job
  echo "returned $?"
done
kill $other
