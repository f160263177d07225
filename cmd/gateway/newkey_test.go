package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/test/testenv"
)

// The manifest goes through kubectl, and only the terminal shows the token.
func TestANewKeyOpensOnceItIsApplied(t *testing.T) {
	env, err := testenv.Start(t.Context(), testenv.Options{CRDs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	cluster, err := kubernetes.NewForConfig(env.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "metalfleet-api-keys"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var manifest, terminal bytes.Buffer
	args := []string{"new-key", "--name=chatbot", "--models=smollm2, team-a/chat", "--model-namespaces=team-b", "--expires=720h", "--requests-per-minute=60", "--tokens-per-minute=100000"}
	if err := run(t.Context(), args, &manifest, &terminal); err != nil {
		t.Fatal(err)
	}
	said := strings.Split(strings.TrimSpace(terminal.String()), "\n")
	token := said[len(said)-1]
	if strings.Contains(manifest.String(), token[len("mf_chatbot_"):]) {
		t.Errorf("the manifest holds the key:\n%s", manifest.String())
	}
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.yaml")
	if err := os.WriteFile(file, manifest.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), "--kubeconfig", env.Kubeconfig, "apply", "--validate=strict", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, manifest.String())
	}
	secret, err := cluster.CoreV1().Secrets("metalfleet-api-keys").Get(t.Context(), "chatbot", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := keys.NewStore(keys.Options{Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	store.Set(secret)
	k, why := store.Find(token)
	if why != "" {
		t.Fatalf("the key opens nothing: %s", why)
	}
	if in := time.Until(k.Expires); in < 719*time.Hour || in > 720*time.Hour {
		t.Errorf("it expires in %s", in)
	}
	k.Expires = time.Time{}
	if d := cmp.Diff(keys.Grant{Models: []string{"smollm2", "team-a/chat"}, ModelNamespaces: []string{"team-b"}, RequestsPerMinute: 60, TokensPerMinute: 100000}, k.Grant); d != "" {
		t.Error(d)
	}
}

func TestANewKeyThatCannotBeMeant(t *testing.T) {
	for name, tc := range map[string]struct {
		args string
		err  string
	}{
		"help":               {args: "--help"},
		"no name":            {args: "--models=m", err: "--name"},
		"nothing to ask":     {args: "--name=k", err: "--models"},
		"no such model":      {args: "--name=k --models=a/b/c", err: "models entry 1"},
		"a name in capitals": {args: "--name=K --models=m", err: "lower-case"},
		"a time gone by":     {args: "--name=k --models=m --expires=-1h", err: "--expires"},
		"no time":            {args: "--name=k --models=m --expires=soon", err: "--expires"},
		"no requests":        {args: "--name=k --models=m --requests-per-minute=0", err: "requests-per-minute"},
		"no number":          {args: "--name=k --models=m --tokens-per-minute=many", err: "tokens-per-minute"},
		"an argument":        {args: "k", err: `unexpected argument "k"`},
		"no namespace":       {args: "--name=k --models=m --namespace=", err: "--namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			err := run(t.Context(), append([]string{"new-key"}, strings.Fields(tc.args)...), &out, &errs)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || out.Len() > 0 {
				t.Errorf("error %v, want %q; printed %s", err, tc.err, out.String())
			}
			if strings.Contains(errs.String(), "mf_") {
				t.Error("a key was printed")
			}
		})
	}
}
