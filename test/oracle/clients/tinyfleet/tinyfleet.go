// Package tinyfleet is a system of real programs with tiny models, for clients:
// one Mac, one gateway, and two doors for plain HTTP, of which one leads straight
// to the Mac's agent.
//
// It owns the models and the doors. The door to the agent is a wire: it puts the
// gateway's certificate around a connection and changes no byte on it.
// Processes belong to package fleet. Programs that test clients use it.
//
// Start reading at With.
package tinyfleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
)

// mac is the one Mac.
const mac = "mac-a"

// The models' names: one answers until it is stopped, one does so for seconds,
// one calls its tool, one sees images, one makes vectors, and one scores.
const (
	Chat     = "tiny"
	Slow     = "slow"
	Caller   = "caller"
	Seeing   = "seeing"
	Embedder = "embedder"
	Reranker = "reranker"
)

// Context is how many tokens the chat model takes.
const Context = 1024

// Door is the base URL of a server, without a path.
type Door struct {
	Name, URL string
	// Keys is true if it requires API keys.
	Keys bool
}

// World is a running system.
type World struct {
	*fleet.Fleet
	straight *wire
}

// Doors are the gateway, and the agent.
func (w *World) Doors() []Door {
	return []Door{{Name: "through the gateway", URL: w.URL}, {Name: "straight at an agent", URL: "http://" + w.straight.listener.Addr().String()}}
}

// Agent is where the agent itself listens, and what it asks of who dials, for
// clients that do so themselves.
func (w *World) Agent() (url string, config *tls.Config) {
	return "https://" + w.straight.agent, w.straight.config.Clone()
}

// Names are those that rows may name.
func (w *World) Names() map[string]any {
	return map[string]any{"model": Chat, "slow": Slow, "caller": Caller, "seeing": Seeing, "embedder": Embedder, "reranker": Reranker, "mac": mac, "too_long": strings.Repeat("long ", 1100),
		"stripes": picture(1), "stripes_url": pngURL + picture(1), "checks": picture(5), "checks_url": pngURL + picture(5)}
}

const pngURL = "data:image/png;base64,"

// picture is a PNG in base64.
func picture(seed int) string {
	m := image.NewGray(image.Rect(0, 0, 60, 40))
	for i := range m.Pix {
		m.Pix[i] = uint8(i * i % (40 * seed))
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		panic(err) // it writes to memory
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// With runs use on a system, and takes everything back.
func With(ctx context.Context, root, keep string, use func(context.Context, *World) error) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	if err := write(models); err != nil {
		return err
	}
	options := fleet.Options{Root: root, ModelRoot: models, Say: func(step string) { fmt.Println("  ", step) },
		Macs:         []fleet.Mac{{Name: mac, Chip: "M4Max", Memory: "64Gi"}},
		GatewayFlags: map[string][]string{keyed: {"--api-keys-namespace=" + keysNamespace}}}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error {
		for _, m := range []fleet.Model{
			{Name: Chat, File: Chat + ".gguf", MaxTokens: Context, MaxConcurrentRequests: 4},
			{Name: Slow, File: Slow + ".gguf", MaxTokens: 4096, MaxConcurrentRequests: 2},
			{Name: Caller, File: Caller + ".gguf", MaxTokens: 2048, MaxConcurrentRequests: 2},
			{Name: Seeing, File: Seeing, MaxTokens: 512, MaxConcurrentRequests: 2},
			{Name: Embedder, File: Embedder, MaxTokens: 40}, {Name: Reranker, File: Reranker, MaxTokens: 40},
		} {
			if err := f.Deploy(ctx, m); err != nil {
				return err
			}
		}
		straight, err := dialAgent(ctx, f)
		if err != nil {
			return err
		}
		return errors.Join(use(ctx, &World{Fleet: f, straight: straight}), straight.close())
	})
}

// write creates the models in a folder.
func write(dir string) error {
	tiny, slow := tinymodel.Default(), tinymodel.Default()
	tiny.Name, tiny.Endless, tiny.Context = Chat, true, Context
	slow.Name, slow.Endless, slow.Context = Slow, true, 4096
	slow.Layers, slow.Hidden, slow.FeedForward, slow.QueryHeads, slow.KVHeads, slow.HeadSize = 4, 256, 768, 8, 4, 32
	caller := tinymodel.Caller()
	caller.Name = Caller
	for _, c := range []tinymodel.Config{tiny, slow, caller} {
		if err := tinymodel.Write(filepath.Join(dir, c.Name+".gguf"), c); err != nil {
			return err
		}
	}
	if err := tinymodel.Seeing("qwen3_vl").Write(filepath.Join(dir, Seeing)); err != nil {
		return err
	}
	for _, r := range tinymodel.Readers() {
		for name, file := range map[string]string{"bert mean": Embedder, "bert rerank": Reranker} {
			if r.Name != name {
				continue
			}
			if err := r.Write(filepath.Join(dir, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// wire passes connections on to an agent.
type wire struct {
	listener net.Listener
	agent    string
	config   *tls.Config
	ctx      context.Context // of the listener's life: it ends all connections
	end      context.CancelFunc
	all      sync.WaitGroup
}

// dialAgent listens for clients of the Mac's agent.
func dialAgent(ctx context.Context, f *fleet.Fleet) (*wire, error) {
	node, err := f.Mac(ctx, mac)
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	if err := f.Client.Get(ctx, client.ObjectKey{Namespace: fleet.Namespace, Name: identity.SecretName}, secret); err != nil {
		return nil, fmt.Errorf("the gateway's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return nil, fmt.Errorf("the gateway's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	config := agentapi.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots, mac)
	config.NextProtos = []string{"http/1.1"} // the protocol of its clients
	w := &wire{agent: net.JoinHostPort(node.Status.Address.Host, strconv.Itoa(int(node.Status.Address.Port))), config: config}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	w.ctx, w.end = context.WithCancel(context.WithoutCancel(ctx))
	w.all.Go(w.accept)
	return w, nil
}

func (w *wire) accept() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.all.Go(func() { w.pass(c) })
	}
}

// pass copies both ways until both have ended, or the wire has.
func (w *wire) pass(down net.Conn) {
	defer down.Close()
	up, err := (&tls.Dialer{Config: w.config}).DialContext(w.ctx, "tcp", w.agent)
	if err != nil {
		return
	}
	defer up.Close()
	stop := context.AfterFunc(w.ctx, func() { down.Close(); up.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(up, down); up.Close() })
	both.Go(func() { _, _ = io.Copy(down, up); down.Close() })
	both.Wait()
}

func (w *wire) close() error {
	w.end()
	err := w.listener.Close()
	w.all.Wait()
	return err
}
