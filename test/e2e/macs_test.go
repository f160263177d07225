//go:build e2e && linux

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/sandbox"
)

// mac is a machine with an agent.
type mac struct {
	machine *sandbox.Machine
	agent   *process.Program
	state   string
}

// hub is a stand-in that speaks the Hugging Face Hub's protocol, over TLS, on the
// node. It serves archives of agents, too.
type hub struct {
	server         *http.Server
	url, roots     string
	source, commit string
}

const repository = "acme/tiny-assistant"

// releases is the folder of those archives.
func (w *world) releases() string { return filepath.Join(w.dir, "releases") }

// openHub publishes a model of random weights.
func (w *world) openHub() (*hub, error) {
	dir := filepath.Join(w.dir, "model")
	c := tinymodel.Default()
	c.Family, c.Endless = tinymodel.Qwen3, true
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.BFloat16), ShardBytes: 1 << 20}); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string]hubtest.File{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files[e.Name()] = hubtest.File{Content: b, LFS: strings.HasSuffix(e.Name(), ".safetensors")}
	}
	authority, err := pki.New(filepath.Join(w.dir, "hub"), pki.Leaf{Name: "hub", Subject: pkix.Name{CommonName: "hub"}, IPs: []net.IP{net.ParseIP(sandbox.Address)}})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(authority.File("hub.crt"), authority.File("hub.key"))
	if err != nil {
		return nil, err
	}
	content := &hubtest.Hub{}
	content.Put(repository, hubtest.Of(files))
	l, err := tls.Listen("tcp", sandbox.Address+":8443", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, err
	}
	paths := http.NewServeMux()
	paths.Handle("/", content)
	paths.Handle("/releases/", http.StripPrefix("/releases/", http.FileServer(http.Dir(w.releases()))))
	h := &hub{url: "https://" + l.Addr().String(), roots: authority.File("ca.crt"), source: "hf://" + repository, commit: hubtest.Commit(files),
		server: &http.Server{Handler: paths, ReadHeaderTimeout: 10 * time.Second}}
	go func() { _ = h.server.Serve(l) }() // it ends with Close
	return h, nil
}

// join makes the Macs' machines and has each join with its token, once.
func (w *world) join(t *testing.T) {
	for i, d := range []struct{ name, chip, memory string }{{name: "studio-1", chip: "M2Ultra", memory: "64Gi"}, {name: "mini-2", chip: "M4", memory: "16Gi"}} {
		if len(w.macs) > i {
			continue // it joined in the story before
		}
		machine, err := sandbox.NewMachine(t.Context(), d.name, i)
		must(t, err)
		m := &mac{machine: machine, state: filepath.Join(w.dir, d.name)}
		w.macs = append(w.macs, m)
		must(t, os.MkdirAll(filepath.Join(m.state, "models"), 0o700))
		// A token is made on the node and piped to the Mac.
		token, err := w.plugin(t.Context(), "join-token", d.name)
		must(t, err)
		program, args := machine.Command(filepath.Join(w.root, "bin", "agent"), "join", "--token-file=-", "--state="+m.state)
		join := exec.CommandContext(t.Context(), program, args...)
		join.Stdin = strings.NewReader(token)
		if out, err := join.CombinedOutput(); err != nil {
			t.Fatalf("agent join: %v: %s", err, out)
		}
		program, args = machine.Command(filepath.Join(w.root, "bin", "agent"),
			"--state="+m.state, "--model-root="+m.state+"/models",
			"--mac=chip="+d.chip+",memory="+d.memory, "--listen="+machine.Address+":8443",
			"--engine="+filepath.Join(w.root, "bin", "engine"), "--grace=2s",
			"--hub-endpoint="+w.hub.url, "--allow-source-cidr="+sandbox.Address+"/32")
		m.agent = process.New("agent-"+d.name, program, w.cluster.LogDir, args...)
		m.agent.Env = []string{"SSL_CERT_FILE=" + w.hub.roots}
		must(t, m.agent.Start())
	}
	w.macsReady(t)
}

func (m *mac) engines(t *testing.T) (pids []int) {
	t.Helper()
	found, err := fleet.Engines(m.state)
	must(t, err)
	for _, e := range found {
		pids = append(pids, e.PID)
	}
	return pids
}

// end stops the agent and then its engines, which outlive it.
func (m *mac) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.agent.Stop(ctx); err != nil {
		return err
	}
	return fleet.Sweep(ctx, m.state)
}
