// Package cluster is a real one-node Kubernetes for end-to-end tests: etcd, API
// server, controllers, scheduler, kubelet, kube-proxy, containerd with runc, a
// CNI bridge and CoreDNS, and Macs as machines of their own beside it.
//
// It owns all of these processes, and runs them inside namespaces of the
// kernel (mounts, network, processes, host name) that it makes first: what a
// kubelet mounts, what a proxy writes into nftables and what containers leave
// behind ends with them. It takes back what no namespace holds: control groups
// and the kernel's settings that a kubelet changes. There is no way out: the
// network has no uplink.
//
// It refuses to run beside another kubelet on the machine, to build or fetch
// anything (programs come from bin/kube, make cluster builds them), and to pull
// images: they are imported from files that package image wrote.
//
// Linux alone, as root. Start reading at Sandbox, then Start.
package cluster
