package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/rehearse"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// manifest is what a person wrote into a file.
const manifest = `apiVersion: metalfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: writer, namespace: team-a}
spec:
  model: {source: "hf://org/small-4bit"}
  replicas: 3
`

// inspected gives a deployment the revision that the operator would make.
func (p *person) inspected(d *v1alpha1.ModelDeployment) {
	p.t.Helper()
	e, refusal := fleet.Resolve(&d.Spec, small)
	if refusal != nil {
		p.t.Fatal(refusal)
	}
	raw, err := e.Encode()
	p.must(err)
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-1", Labels: map[string]string{v1alpha1.LabelDeployment: d.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.GroupVersion.WithKind("ModelDeployment"))}},
		Data: runtime.RawExtension{Raw: raw}, Revision: 1,
	}
	p.must(p.c.Create(context.Background(), r))
	p.t.Cleanup(func() { p.must(p.c.Delete(context.Background(), r)) })
}

// file writes a manifest into a file of its own.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// chosen are the Macs that inspect a source, which depends on their UIDs.
var chosen = regexp.MustCompile(`(waiting for|inspected by) mac-[a-z0-9-]+, mac-[a-z0-9-]+`)

func TestPlanOnARealAPIServer(t *testing.T) {
	p := newPerson(t)
	p.office()
	var chat v1alpha1.ModelDeployment
	p.must(p.c.Get(context.Background(), client.ObjectKey{Namespace: "team-a", Name: "chat"}, &chat))

	unseen, _ := p.wants(exitUnknown, "plan", "-f", file(t, "m.yaml", manifest))
	golden(t, "plan-unknown", chosen.ReplaceAllString(unseen, "$1 MAC, MAC"))
	p.inspected(&chat)
	out, errs := p.wants(exitNoFit, "plan", "-f", file(t, "m.yaml", manifest+"  context: {maxTokens: 8192, kvCacheTokens: 2097152}\n"))
	golden(t, "plan", replicaName(out))
	if errs != "" {
		t.Errorf("standard error: %s", errs)
	}

	p.in = manifest
	out, _ = p.wants(exitOK, "plan", "-f", "-", "-o", "json")
	p.in = ""
	var said struct{ Plans []rehearse.Answer }
	p.must(json.Unmarshal([]byte(out), &said))
	if len(said.Plans) != 1 || said.Plans[0].Verdict != rehearse.Fits || len(said.Plans[0].Replicas) != 3 || said.Plans[0].Need.ReservedBytes <= small.Bytes() {
		t.Errorf("JSON: %s", out)
	}

	var all v1alpha1.ModelDeploymentList
	p.must(p.c.List(context.Background(), &all))
	if len(all.Items) != 2 {
		t.Errorf("a plan stored something: %d deployments", len(all.Items))
	}
	p.plansAChange(t, &chat)
}

// plansAChange judges an edit of what runs, as kubectl apply would merge it.
func (p *person) plansAChange(t *testing.T, chat *v1alpha1.ModelDeployment) {
	scaled := "apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: chat, namespace: team-a}\nspec:\n  model: {source: hf://org/small-4bit}\n  replicas: 2\n"
	out, _ := p.wants(exitOK, "plan", "-f", file(t, "m.yaml", scaled))
	contains(t, "plan", out, "would be changed: it fits", "Model: llama Q4_1, from the inspection of the source", "chat-0a1b2c3d  mac-studio-1  stays")
	var after v1alpha1.ModelDeployment
	p.must(p.c.Get(context.Background(), client.ObjectKeyFromObject(chat), &after))
	if after.Generation != chat.Generation || after.ResourceVersion != chat.ResourceVersion {
		t.Error("a plan changed what is stored")
	}
}

func TestPlanReadsHeaders(t *testing.T) {
	p := newPerson(t)
	p.office()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	p.must(tinymodel.Write(path, tinymodel.Default()))
	out, _ := p.wants(exitOK, "plan", "-f", file(t, "m.yaml", manifest), "--model", path)
	contains(t, "plan", out, "it fits", "from the headers in "+path, "KV cache")
}

func TestManifestsThatCannotBeMeant(t *testing.T) {
	p := newPerson(t)
	p.namespace("team-a")
	const head = "apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: m, namespace: team-a}\n"
	for _, tc := range []struct {
		code       int
		text, says string
	}{
		{code: exitFailed, text: head + "spec: {model: {source: 'ftp://x/y.gguf'}}\n", says: "source must begin with file://"},
		{code: exitFailed, text: head + "spec: {model: {source: 'https://h/y.gguf'}}\n", says: "model.sha256 is required"},
		{code: exitFailed, text: head + "spec: {modle: {source: 'hf://o/n'}}\n", says: `unknown field "spec.modle"`},
		{code: exitFailed, text: head + "spec: {model: {source: 'hf://o/n'}, replcas: 2}\n", says: `unknown field "spec.replcas"`},
		{code: exitFailed, text: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n", says: `contains a ConfigMap "m"`},
		{code: exitFailed, text: "", says: "contains no ModelDeployment"},
		{code: exitFailed, text: "{", says: "read the manifest"},
		{code: exitFailed, text: "apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: m, namespace: nowhere}\nspec: {model: {source: 'hf://o/n'}}\n", says: `"nowhere" not found`},
	} {
		_, errs := p.wants(tc.code, "plan", "-f", file(t, "m.yaml", tc.text))
		contains(t, tc.text, errs, tc.says)
	}
	_, errs := p.wants(exitUsage, "plan")
	contains(t, "plan", errs, "set -f to a file")
	_, errs = p.wants(exitFailed, "plan", "-f", "/nonexistent.yaml")
	contains(t, "plan", errs, "no such file")
	_, errs = p.wants(exitFailed, "plan", "-f", file(t, "m.yaml", head+"spec: {model: {source: 'hf://o/n'}}\n"), "--model", "/nonexistent")
	contains(t, "plan", errs, "read the headers of --model")
}
