package fuzzapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
)

const (
	macName = "studio"
	// modelContext of the model that chats; those that read texts read fewer.
	modelContext, readerContext = 256, 64
	// patience bounds each wait for the fleet.
	patience = 3 * time.Minute
)

// models by the deployment's name, each with its file under the model root.
var models = map[string]string{"chat": "chat.gguf", "embed": "embed", "rerank": "rerank"}

func writeModels(dir string) error {
	c := tinymodel.Default()
	c.Name, c.Context = "chat", modelContext
	if err := tinymodel.Write(filepath.Join(dir, models["chat"]), c); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	for _, r := range tinymodel.Readers() {
		name := map[string]string{"bert mean": "embed", "bert rerank": "rerank"}[r.Name]
		if name == "" {
			continue
		}
		if err := r.Write(filepath.Join(dir, models[name])); err != nil {
			return fmt.Errorf("models: %w", err)
		}
	}
	return nil
}

// newMac returns a Mac whose agent serves metrics.
func newMac() (m fleet.Mac, metrics string, err error) {
	port, err := testenv.FreePort()
	if err != nil {
		return m, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return fleet.Mac{Name: macName, Chip: "M2Ultra", Memory: "64Gi", Flags: []string{"--metrics=" + address}}, "http://" + address + "/metrics", nil
}

// deploy makes the models and waits until they are ready.
func (f *fuzz) deploy(ctx context.Context) error {
	for name, file := range models {
		m := fleet.Model{Name: name, File: file, MaxTokens: readerContext, MaxConcurrentRequests: 4}
		if name == "chat" {
			m.MaxTokens, m.KVCacheTokens = modelContext, 4*modelContext
		}
		if err := f.Client.Create(ctx, m.Deployment()); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return fleet.Poll(ctx, 100*time.Millisecond, "the models are ready", func(ctx context.Context) error {
		for name := range models {
			md := &v1alpha1.ModelDeployment{}
			if err := f.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, md); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
				return errors.Join(fmt.Errorf("%s: %v", name, md.Status.Conditions), f.Failed())
			}
		}
		return nil
	})
}

// warm waits until each route answers through each door.
func (f *fuzz) warm(ctx context.Context, doors []door) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	for _, d := range doors {
		for _, path := range paths {
			err := fleet.Poll(ctx, 100*time.Millisecond, path+" answers through the "+d.name, func(ctx context.Context) error { return d.once(ctx, path) })
			if err != nil {
				return errors.Join(err, f.Failed())
			}
		}
	}
	return nil
}

// door is where requests are sent to.
type door struct {
	name, url string
	// dial opens a connection that speaks HTTP/1.1.
	dial func(context.Context) (net.Conn, error)
}

func dialer(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", u.Host)
	}
}

// once wants a route to answer its least request.
func (d door) once(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+path, bytes.NewReader(least(path)))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, said)
	}
	return err
}

// paths of routes that take a body.
var paths = []string{dialect.PathChat, dialect.PathCompletions, dialect.PathEmbeddings, dialect.PathRerank, dialect.PathRerankV2, dialect.PathMessages,
	dialect.PathCountTokens, dialect.PathResponses}

// least is a body that is answered.
func least(path string) []byte {
	const say = `[{"role":"user","content":"hi"}]`
	switch path {
	case dialect.PathCompletions:
		return []byte(`{"model":"default/chat","max_tokens":4,"prompt":"hi"}`)
	case dialect.PathEmbeddings:
		return []byte(`{"model":"default/embed","input":"hi"}`)
	case dialect.PathRerank, dialect.PathRerankV2:
		return []byte(`{"model":"default/rerank","query":"hi","documents":["ho"]}`)
	case dialect.PathCountTokens:
		return []byte(`{"model":"default/chat","messages":` + say + `}`)
	case dialect.PathResponses:
		return []byte(`{"model":"default/chat","max_output_tokens":4,"input":"hi"}`)
	}
	return []byte(`{"model":"default/chat","max_tokens":4,"messages":` + say + `}`)
}

// agentDoor is an agent's port, which accepts only gateways, with a plain HTTP proxy
// for clients without a certificate.
type agentDoor struct {
	door
	transport *http.Transport
	close     func()
}

// straight opens the agent's port with the gateway's own identity.
func (f *fuzz) straight(ctx context.Context) (*agentDoor, error) {
	var secret corev1.Secret
	if err := f.Client.Get(ctx, client.ObjectKey{Namespace: fleet.Namespace, Name: identity.SecretName}, &secret); err != nil {
		return nil, fmt.Errorf("the gateway's identity: %w", err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return nil, fmt.Errorf("the gateway's identity: %w", err)
	}
	roots, _, err := agentapi.Roots(secret.Data["ca.crt"])
	if err != nil {
		return nil, fmt.Errorf("the gateway's identity: %w", err)
	}
	mac, err := f.Mac(ctx, macName)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(mac.Status.Address.Host, fmt.Sprint(mac.Status.Address.Port))
	config := agentapi.ClientTLS(func() (*tls.Certificate, error) { return &pair, nil }, roots, macName)
	plain := config.Clone()
	plain.NextProtos = []string{"http/1.1"}
	out := &agentDoor{transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	target := &url.URL{Scheme: "https", Host: address}
	front := httptest.NewServer(&httputil.ReverseProxy{Transport: out.transport, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	out.door = door{name: "agent", url: front.URL, dial: func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: plain}).DialContext(ctx, "tcp", address)
	}}
	out.close = func() { front.Close(); out.transport.CloseIdleConnections() }
	if _, err := os.Stat(f.options.schemathesis); err != nil {
		out.close()
		return nil, fmt.Errorf("schemathesis is not installed, make fuzz installs it: %w", err)
	}
	return out, nil
}
