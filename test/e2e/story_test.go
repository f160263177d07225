//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStory is what a user and an administrator do.
func TestStory(t *testing.T) {
	sequence(t,
		step{name: "helm install", do: w.install},
		step{name: "what the defaults refuse", do: w.defaults},
		step{name: "two Macs join", do: w.join},
		step{name: "a model from the hub", do: w.deploy},
		step{name: "a Pod asks", do: w.ask},
		step{name: "top and why", do: w.look},
		step{name: "helm test", do: w.test},
		step{name: "a Mac's link is cut", do: w.cut},
		step{name: "the link is back", do: w.mend},
		step{name: "an uninstall is refused", do: w.refused},
		step{name: "a backup", do: w.backup},
		step{name: "everything is lost", do: w.lose},
		step{name: "the backup is restored", do: w.restore},
		step{name: "a Pod asks the restored model", do: w.ask},
		step{name: "the model is deleted", do: w.remove},
		step{name: "helm uninstall", do: w.uninstall},
		// The way back: the same Macs serve without another join.
		step{name: "helm install again", do: w.install},
		step{name: "the Macs are ready", do: w.macsReady},
		step{name: "the model again", do: w.deploy},
		step{name: "a Pod asks again", do: w.ask},
		step{name: "the model is deleted again", do: w.remove},
		step{name: "a GitOps tool syncs", do: w.gitops},
		step{name: "helm waits for a model", do: w.wait},
	)
}

// install is what the documentation shows.
func (w *world) install(t *testing.T) {
	if out, err := w.helm(t.Context(), "status", "metalfleet"); err == nil && strings.Contains(out, "deployed") {
		return // by the story before
	}
	w.documented(t, "how-to/install.md", "install", false)
}

// defaults refuse a tenant what its namespace was not given, and metrics to anyone
// without an account: no values of the story concern these.
func (w *world) defaults(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"a system priority": {spec: `{"model": {"source": "hf://a/b"}, "servedNames": ["default/x"], "priorityClassName": "system-node-critical"}`, want: "may not use the priority class"},
		"a foreign file":    {spec: `{"model": {"source": "file://` + team + `/private.gguf"}, "servedNames": ["default/x"]}`, want: "may not use the source"},
		"a squatted name":   {spec: `{"model": {"source": "hf://a/b"}, "servedNames": ["` + model + `"]}`, want: "may not serve the name"},
	} {
		file := filepath.Join(w.dir, "refused.json")
		must(t, os.WriteFile(file, []byte(`{"apiVersion": "metalfleet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "x", "namespace": "default"}, "spec": `+tc.spec+`}`), 0o644))
		if out, err := w.cluster.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file); err == nil || !strings.Contains(err.Error()+out, tc.want) {
			t.Errorf("%s: %q, %v; want a refusal that contains %q", name, out, err, tc.want)
		}
	}
	for _, program := range []string{"operator", "gateway"} {
		// The API server passes requests on without the credentials of who asks.
		path := "/api/v1/namespaces/" + namespace + "/services/https:metalfleet-" + program + "-metrics:metrics/proxy/metrics"
		out, err := w.cluster.Kubectl(t.Context(), "get", "--raw", path)
		if err == nil || !strings.Contains(err.Error()+out, "metrics need a bearer token") && !strings.Contains(err.Error()+out, "Unauthorized") && !strings.Contains(err.Error()+out, "provide credentials") {
			t.Errorf("metrics of the %s without an account: %.200q, %v", program, out, err)
		}
	}
}

// manifest is what a user applies.
const manifest = `apiVersion: v1
kind: Namespace
metadata: {name: ` + team + `}
---
apiVersion: metalfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: ` + model + `, namespace: ` + team + `}
spec:
  model: {source: "$SOURCE"}
  replicas: 2
  context: {maxTokens: 512, maxConcurrentRequests: 4}
`

func (w *world) deploy(t *testing.T) {
	w.apply(t, "model.yaml", strings.ReplaceAll(manifest, "$SOURCE", w.hub.source))
	if _, err := w.cluster.Kubectl(t.Context(), "-n", team, "wait", "--for=condition=Ready", "--timeout=180s", "mdep/"+model); err != nil {
		t.Fatalf("%v\n%s", err, w.kubectl(t, "-n", team, "describe", "mdep,mr"))
	}
	// Every replica is of the commit that the branch pointed to.
	out := w.kubectl(t, "-n", team, "get", "mr", "-o", "jsonpath={.items[*].spec.model.commit}")
	if want := w.hub.commit + " " + w.hub.commit; out != want {
		t.Errorf("the replicas' commits are %q, want %q", out, want)
	}
}

// podOf is a Pod with the official client that runs a script.
func podOf(name string, args ...string) string {
	list, _ := json.Marshal(args) // strings always encode
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": %q}, "spec": {"restartPolicy": "Never",
		"automountServiceAccountToken": false, "volumes": [{"name": "tmp", "emptyDir": {}}],
		"containers": [{"name": "client", "image": %q, "imagePullPolicy": "Never", "args": %s,
			"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
			"securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]}}`,
		name, team, clientImage, list)
}

// ask runs a Pod with the official client to its end, and wants a whole streamed
// answer.
func (w *world) ask(t *testing.T) {
	w.pods++
	name := fmt.Sprintf("ask-%d", w.pods)
	// It tries for 20 s: kube-proxy writes its rules a second after Ready.
	w.apply(t, name+".json", podOf(name, "/ask.py", baseURL, model, "20"))
	until(t, 2*time.Minute, "Pod "+name+" has ended", func(ctx context.Context) error {
		phase, err := w.cluster.Kubectl(ctx, "-n", team, "get", "pod", name, "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Succeeded" && phase != "Failed" {
			err = errors.New(phase)
		}
		return err
	})
	var a struct {
		Models                 []string
		Text, Finish           string
		Pieces, Tokens, Prompt int
		Error, Message         string
	}
	out := w.kubectl(t, "-n", team, "logs", name)
	if err := json.Unmarshal([]byte(out), &a); err != nil || a.Error != "" {
		t.Fatalf("the client printed %q (%v)", out, err)
	}
	if len(a.Models) != 1 || a.Models[0] != model {
		t.Errorf("the models are %q", a.Models)
	}
	if a.Finish != "length" || a.Tokens != 24 || a.Prompt < 5 || a.Text == "" || a.Pieces < 3 { // tokens that wait come in one piece
		t.Errorf("the answer is not whole: %+v", a)
	}
}

// look is what an administrator looks at.
func (w *world) look(t *testing.T) {
	if out := w.documented(t, "how-to/troubleshoot.md", "logs", false); !strings.Contains(out, "Agent started") || !strings.Contains(out, `"msg":`) {
		t.Errorf("the logs of agent and engines are %q", out)
	}
	for _, test := range []struct {
		args []string
		want string
	}{{args: []string{"top", "--once"}, want: w.macs[0].machine.Name}, {args: []string{"why", team + "/" + model}, want: model}} {
		out, err := w.plugin(t.Context(), test.args...)
		if err != nil || !strings.Contains(out, test.want) {
			t.Errorf("kubectl metalfleet %q printed %q, want %q in it (%v)", test.args, out, test.want, err)
		}
	}
}

func (w *world) test(t *testing.T) {
	if out := w.documented(t, "how-to/install.md", "verify", false); !strings.Contains(out, "Succeeded") {
		t.Errorf("helm test printed %q", out)
	}
}

// cut takes a Mac off the network: the other one answers at once, and the operator
// reports which is missing.
func (w *world) cut(t *testing.T) {
	must(t, w.macs[1].machine.Cut(t.Context()))
	for range 3 {
		w.ask(t)
	}
	w.waitMac(t, 1, "Unknown")
}

// mend restores the link: the Mac is ready again, and its engine was never stopped.
func (w *world) mend(t *testing.T) {
	before := w.macs[1].engines(t)
	must(t, w.macs[1].machine.Mend(t.Context()))
	w.waitMac(t, 1, "True")
	w.kubectl(t, "-n", team, "wait", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=90s", "mdep/"+model)
	if after := w.macs[1].engines(t); fmt.Sprint(before) != fmt.Sprint(after) || len(after) != 1 {
		t.Errorf("engines of the Mac were %v, are %v: a cut link must stop none", before, after)
	}
	w.ask(t)
}

// refused: an uninstall while models exist would leave their memory reserved.
func (w *world) refused(t *testing.T) {
	if out, err := w.helm(t.Context(), "uninstall", "metalfleet", "--timeout", "1m"); err == nil {
		t.Fatalf("helm uninstalled it while a ModelDeployment exists: %s", out)
	}
	if out, err := w.helm(t.Context(), "upgrade", "metalfleet", filepath.Join(w.root, "charts", "metalfleet"), "--reuse-values"); err != nil {
		t.Errorf("after the refusal the release cannot be upgraded: %v\n%s", err, out)
	}
	w.ask(t)
}

// remove deletes the model: its engines end, and their bytes are reported.
func (w *world) remove(t *testing.T) {
	w.kubectl(t, "-n", team, "delete", "mdep", model, "--timeout=120s")
	w.reclaimed(t)
}

// reclaimed: no Mac runs an engine, and each reports what the last one freed.
func (w *world) reclaimed(t *testing.T) {
	t.Helper()
	for _, m := range w.macs {
		freed := w.kubectl(t, "get", "mac", m.machine.Name, "-o", "jsonpath={.status.reclaims[-1:].freedBytes}")
		if left := m.engines(t); len(left) > 0 || len(freed) < 7 {
			t.Errorf("on Mac %s: engines %v are left, freed bytes %q", m.machine.Name, left, freed)
		}
	}
}

func (w *world) uninstall(t *testing.T) {
	w.documented(t, "how-to/install.md", "uninstall", false)
	// Kinds stay, and so do Macs: an uninstall loses no data.
	if out := w.kubectl(t, "get", "mac", "-o", "name"); len(strings.Fields(out)) != len(w.macs) {
		t.Errorf("of %d Macs there are %q", len(w.macs), out)
	}
}

// waitMac waits for a status of the condition Ready.
func (w *world) waitMac(t *testing.T, i int, status string) {
	t.Helper()
	_, err := w.cluster.Kubectl(t.Context(), "wait", "--for=condition=Ready="+status, "--timeout=120s", "mac/"+w.macs[i].machine.Name)
	must(t, errors.Join(err, w.macs[i].agent.Failed()))
}

func (w *world) macsReady(t *testing.T) {
	for i := range w.macs {
		w.waitMac(t, i, "True")
	}
}
