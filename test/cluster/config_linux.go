package cluster

import "fmt"

// containerdConfig keeps everything in the state folder. Control groups of
// version 1 have no hugetlb controller on small machines, and a machine without
// CAP_SYS_RESOURCE cannot lower a score of the kernel's out-of-memory killer.
func (c *Cluster) containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = %q
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
`, c.file("containerd"), socket, PauseImage, c.o.Bin, c.file("cni"))
}

// bridge is the Pods' network: they leave by the node's address. nftables, as
// kube-proxy: no iptables is needed.
const bridge = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": "` + pods + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

// kubeletConfig: a kubelet refuses control groups of version 1 by default.
func (c *Cluster) kubeletConfig() string {
	f := c.pki.File
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %q}}
authorization: {mode: Webhook}
tlsCertFile: %q
tlsPrivateKeyFile: %q
clusterDNS: [%s]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
resolvConf: %q
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%, nodefs.inodesFree: 1%%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
`, nodeAddress, f("ca.crt"), f("kubelet.crt"), f("kubelet.key"), dnsAddress, socket, c.file("resolv.conf"))
}

// proxyConfig: in nftables mode a Service without endpoints is refused at once.
func (c *Cluster) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
metricsBindAddress: 127.0.0.1:10249
hostnameOverride: %s
mode: nftables
clusterCIDR: %s
oomScoreAdj: 0
clientConnection: {kubeconfig: %q}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, nodeName, pods, c.kubeconfig("proxy"))
}
