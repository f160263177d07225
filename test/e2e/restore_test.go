//go:build e2e && linux

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

func (w *world) snapshot() string { return filepath.Join(w.dir, "etcd-backup") }

// backup copies what etcd holds, as an administrator of the cluster does.
func (w *world) backup(t *testing.T) {
	must(t, w.cluster.Offline(t.Context(), func() error {
		return os.CopyFS(w.snapshot(), os.DirFS(w.cluster.EtcdDir()))
	}))
	w.macsReady(t)
	w.ask(t)
}

// lose deletes the model and the Macs, whose accounts go with them.
func (w *world) lose(t *testing.T) {
	w.remove(t)
	w.kubectl(t, "delete", "mac", "--all", "--timeout=120s")
}

// restore brings the objects back with their UIDs. The Macs find theirs, without a token
// or a restart, and load the model again.
func (w *world) restore(t *testing.T) {
	must(t, w.cluster.Offline(t.Context(), func() error {
		if err := os.RemoveAll(w.cluster.EtcdDir()); err != nil {
			return err
		}
		return os.CopyFS(w.cluster.EtcdDir(), os.DirFS(w.snapshot()))
	}))
	// Programs that watched the API server before the restore have stale caches.
	w.kubectl(t, "-n", "kube-system", "rollout", "restart", "deploy/coredns")
	w.kubectl(t, "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout=120s")
	w.documented(t, "how-to/install.md", "restored", false)
	w.macsReady(t)
	w.kubectl(t, "-n", team, "wait", "--for=condition=Ready", "--timeout=180s", "mdep/"+model)
}
