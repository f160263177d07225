package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// mac is a machine with an agent.
type mac struct {
	net   *cluster.Mac
	agent *process.Program
	state string
}

// declared are the Macs of the story.
var declared = []struct{ name, chip, memory string }{
	{"studio-1", "M2Ultra", "64Gi"},
	{"mini-2", "M4", "16Gi"},
}

// hub is a stand-in that speaks the Hugging Face Hub's protocol, over TLS, on
// the node. It gives out archives of agents, too.
type hub struct {
	server         *http.Server
	url, roots     string
	source, commit string
}

const repository = "acme/tiny-assistant"

// releases is the folder of those archives.
func (s *story) releases() string { return filepath.Join(s.dir, "releases") }

// openHub publishes a model of random weights.
func (s *story) openHub() (*hub, error) {
	dir := filepath.Join(s.dir, "model")
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
	authority, err := pki.New(filepath.Join(s.dir, "hub"), pki.Leaf{Name: "hub", Subject: pkix.Name{CommonName: "hub"}, IPs: []net.IP{net.ParseIP(s.cluster.Address())}})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(authority.File("hub.crt"), authority.File("hub.key"))
	if err != nil {
		return nil, err
	}
	content := &hubtest.Hub{}
	content.Put(repository, hubtest.Of(files))
	l, err := tls.Listen("tcp", s.cluster.Address()+":8443", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, err
	}
	paths := http.NewServeMux()
	paths.Handle("/", content)
	paths.Handle("/releases/", http.StripPrefix("/releases/", http.FileServer(http.Dir(s.releases()))))
	h := &hub{url: "https://" + l.Addr().String(), roots: authority.File("ca.crt"), source: "hf://" + repository, commit: hubtest.Commit(files),
		server: &http.Server{Handler: paths, ReadHeaderTimeout: 10 * time.Second}}
	go func() { _ = h.server.Serve(l) }() // it ends with Close
	return h, nil
}

// join makes the Macs' machines and has each join with its token.
func (s *story) join(ctx context.Context) error {
	var err error
	if s.hub, err = s.openHub(); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	for i, d := range declared {
		machine, err := s.cluster.AddMac(ctx, d.name, i)
		if err != nil {
			return err
		}
		m := &mac{net: machine, state: filepath.Join(s.dir, d.name)}
		s.macs = append(s.macs, m)
		if err := m.join(ctx, s); err != nil {
			return fmt.Errorf("on Mac %s: %w", d.name, err)
		}
		program, args := machine.Command(filepath.Join(s.o.root, "bin", "agent"),
			"--state="+m.state, "--model-root="+m.state+"/models",
			"--mac=chip="+d.chip+",memory="+d.memory, "--listen="+machine.Address+":8443",
			"--engine="+filepath.Join(s.o.root, "bin", "engine"), "--grace=2s",
			"--hub-endpoint="+s.hub.url, "--allow-source-cidr="+s.cluster.Address()+"/32")
		m.agent = process.New("agent-"+d.name, program, s.cluster.LogDir, args...)
		m.agent.Env = []string{"SSL_CERT_FILE=" + s.hub.roots}
		if err := m.agent.Start(); err != nil {
			return err
		}
	}
	if err := s.macsReady(ctx); err != nil {
		return err
	}
	return nil
}

// join has the Mac join as an administrator would: a token is made on
// the node and piped to the Mac.
func (m *mac) join(ctx context.Context, s *story) error {
	for _, dir := range []string{m.state, filepath.Join(m.state, "models")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var said bytes.Buffer
	mint := exec.CommandContext(ctx, filepath.Join(s.o.root, "bin", "kubectl-metalfleet"), "join-token", m.net.Name, "--kubeconfig="+s.cluster.Kubeconfig)
	mint.Stderr = &said
	token, err := mint.Output()
	if err != nil {
		return fmt.Errorf("join-token: %w: %s", err, said.String())
	}
	program, args := m.net.Command(filepath.Join(s.o.root, "bin", "agent"), "join", "--token-file=-", "--state="+m.state)
	join := exec.CommandContext(ctx, program, args...)
	join.Stdin = bytes.NewReader(token)
	if out, err := join.CombinedOutput(); err != nil {
		return fmt.Errorf("agent join: %w: %s", err, out)
	}
	return nil
}

func (m *mac) engines() ([]int, error) {
	found, err := fleet.Engines(m.state)
	var pids []int
	for _, e := range found {
		pids = append(pids, e.PID)
	}
	return pids, err
}

// end stops the agent and then its engines, which outlive it.
func (m *mac) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if m.agent != nil {
		if err := m.agent.Stop(ctx); err != nil {
			return err
		}
	}
	return fleet.Sweep(ctx, m.state)
}
