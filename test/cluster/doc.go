// Package cluster is a real one-node Kubernetes for end-to-end tests: etcd, API
// server, controllers, scheduler, kubelet, kube-proxy, containerd with runc, a
// CNI bridge and CoreDNS. Macs are machines of their own, of package sandbox.
//
// It owns all of these processes, and runs inside a sandbox: what a kubelet
// mounts, what a proxy writes into nftables and what containers leave all ends
// with that. It undoes what no namespace holds: control groups and the kernel's
// settings that a kubelet changes. The network has no uplink.
//
// It refuses to run next to another kubelet on the machine, to build or fetch
// anything (programs come from bin/kube, make cluster builds them), and to pull
// images: they are imported from files that package image wrote.
//
// Linux alone, as root. Start reading at Sandbox, then Start.
package cluster
