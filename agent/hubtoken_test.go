package agent

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// privateHub moves the model of a Mac to a private repository of a hub, which serves it for a token.
func privateHub(m *mac, token string) *hubtest.Hub {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.root, "tiny.gguf"))
	if err != nil {
		m.t.Fatal(err)
	}
	repo := hubtest.Of(map[string]hubtest.File{"tiny.gguf": {Content: content, LFS: true}})
	repo.Private, repo.Token = true, token
	hub := &hubtest.Hub{}
	hub.Put("org/tiny", repo)
	srv := httptest.NewTLSServer(hub)
	m.t.Cleanup(srv.Close)
	m.root = m.t.TempDir()
	m.hub, m.sources = srv.URL, download.Policy{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Roots: rootsOf(srv)}
	return hub
}

// wantNoFileWith requires that no file in a folder contains a text.
func wantNoFileWith(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if bytes.Contains(b, []byte(text)) {
			t.Errorf("%s contains %q", p, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAMacReadsTheHubWithTheTokenOfItsSecret runs one scenario against a real API
// server: an assignment arrives before its token, then the token; the model is
// downloaded and served, and no log, report or file contains the token.
func TestAMacReadsTheHubWithTheTokenOfItsSecret(t *testing.T) {
	m := newMac(t, tinymodel.Default())
	k := newCluster(t, m.authority)
	hub := privateHub(m, "hf_secret")
	logs := &said{}
	m.log = funcr.New(logs.add, funcr.Options{Verbosity: 9})
	m.join(k)

	ref := strings.Repeat("ab", 32)
	k.assign(v1alpha1.MacAssignmentSpec{Inspections: []v1alpha1.Inspection{{ID: "look", Source: "hf://org/tiny", TokenRef: ref}}}, true)
	look := func() v1alpha1.InspectionStatus {
		if all := k.mac().Status.Inspections; len(all) == 1 {
			return all[0]
		}
		return v1alpha1.InspectionStatus{}
	}
	poll(t, func() error {
		if i := look(); i.State != v1alpha1.InspectionRunning || !strings.Contains(i.Message, "model.secretRef") {
			return fmt.Errorf("without its token: %+v", i)
		}
		return nil
	})
	if n := len(hub.Requests()); n > 0 {
		t.Errorf("%d requests without the token", n)
	}
	k.token(ref, "hf_secret")
	poll(t, func() error {
		if i := look(); i.State != v1alpha1.InspectionResolved {
			return fmt.Errorf("with its token: %+v", i)
		}
		return nil
	})
	m.record = *look().Model
	order := m.assignment()
	order.TokenRef = ref
	k.order(order)
	k.waitFor(v1alpha1.ConditionServing, "True/Serving")

	report, err := json.Marshal(k.mac())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(report, []byte("hf_secret")) || strings.Contains(logs.all(), "hf_secret") {
		t.Error("the MacNode or the log says the token")
	}
	wantNoFileWith(t, m.state, "hf_secret")
	k.order()
	poll(t, func() error {
		if s := k.mac().Status; len(s.Assignments) > 0 {
			return fmt.Errorf("after the order was withdrawn: %+v", s.Assignments)
		}
		return nil
	})
}

// token puts a hub token into the Mac's Secret, as the operator does.
func (k *cluster) token(ref, value string) {
	k.t.Helper()
	var s corev1.Secret
	if err := k.Get(k.t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.AgentObjectName("m1")}, &s); err != nil {
		k.t.Fatal(err)
	}
	s.Data[v1alpha1.HubTokenKeyPrefix+ref] = []byte(value)
	s.Data[v1alpha1.HubTokenKeyPrefix+strings.Repeat("0", 64)] = []byte("no\r\nToken: 1")
	if err := k.Update(k.t.Context(), &s); err != nil {
		k.t.Fatal(err)
	}
}

func rootsOf(srv *httptest.Server) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return roots
}

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) add(prefix, args string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(&s.text, prefix, args)
}

func (s *said) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
