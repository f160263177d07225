//go:build !race

package policy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

const system = "metalfleet-system"

// The accounts that act in these tests.
const (
	operator = "system:serviceaccount:" + system + ":metalfleet-operator"
	studio   = "system:serviceaccount:" + system + ":mac-studio"
	root     = "" // a cluster administrator
	fleet    = "fleet"
	oncall   = "oncall"
	patcher  = "patcher"
	mallory  = "mallory"
)

// rights are those of the people, beyond what config/rbac grants.
const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
---
apiVersion: v1
kind: Secret
metadata: {name: db, namespace: tenant}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: fleet}
rules: [{apiGroups: [metalfleet.dev], resources: [macnodes, macnodes/status, macassignments, macassignments/status], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: patcher}
rules: [{apiGroups: [metalfleet.dev], resources: [macnodes], verbs: [get, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: mallory}
rules: [{apiGroups: [metalfleet.dev], resources: [modeldeployments, modeldeployments/status, modeldeployments/scale, modelreplicas, modelreplicas/status], verbs: ["*"]}, {apiGroups: [apps], resources: [controllerrevisions], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fleet}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fleet}
subjects: [{kind: User, name: fleet}, {kind: User, name: "` + studio + `"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: patcher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: patcher}
subjects: [{kind: User, name: patcher}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: oncall}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metalfleet-cordon}
subjects: [{kind: User, name: oncall}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mallory, namespace: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mallory}
subjects: [{kind: User, name: mallory}]
---
apiVersion: metalfleet.dev/v1alpha1
kind: MacNode
metadata: {name: studio}
---
apiVersion: metalfleet.dev/v1alpha1
kind: MacAssignment
metadata: {name: studio}
spec: {inspections: [{id: i, source: "hf://a/b"}]}
`

// world is an API server with both folders applied.
type world struct {
	t   *testing.T
	env *testenv.Env
	// users are the clients of each, which have read what kinds there are.
	users map[string]client.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, env: env, users: map[string]client.Client{}}
}

// env is one API server for all tests of this package; they run in sequence.
var env *testenv.Env

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(func() int {
		var err error
		if env, err = testenv.Start(context.Background(), testenv.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := env.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		if err := install(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// install applies the rights of people, before there are policies to judge them,
// and both folders.
func install() error {
	c, err := client.New(env.Config(), client.Options{})
	if err != nil {
		return err
	}
	texts := []string{rights}
	for _, file := range []string{"../rbac/operator.yaml", "../rbac/role.yaml", "../rbac/people.yaml", "../rbac/agents.yaml", "../rbac/writes.yaml", "addresses.yaml", "tenants.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		texts = append(texts, string(text))
	}
	for _, text := range texts {
		all, err := objects(text)
		if err != nil {
			return err
		}
		for _, o := range all {
			if err := c.Create(context.Background(), o); err != nil {
				return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
	}
	return nil
}

// as is a client that acts as a user; the empty name is an administrator.
func (w *world) as(user string) client.Client {
	w.t.Helper()
	if c := w.users[user]; c != nil {
		return c
	}
	config := w.env.Config()
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.users[user] = c
	return c
}

// objects reads YAML documents.
func objects(text string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			return nil, fmt.Errorf("%w in %s", err, doc)
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
	return out, nil
}

// object reads one.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	all, err := objects(text)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d objects, %v", len(all), err)
	}
	return all[0]
}

// attempt is one write and how it must end.
type attempt struct {
	name, who string
	// do creates an object, or is replaced by patch, update or remove.
	object string
	patch  string // of the object; a merge patch
	status bool   // the patch is of the status
	remove bool
	update bool
	// refused is what the refusal of a policy must contain; empty if the write is
	// allowed.
	refused string
}

// try does a write without storing it.
func (w *world) try(ctx context.Context, a attempt) error {
	c, o := w.as(a.who), object(w.t, a.object)
	patch := client.RawPatch(types.MergePatchType, []byte(a.patch))
	switch {
	case a.remove:
		return c.Delete(ctx, o, client.DryRunAll)
	case a.update:
		have := o.DeepCopy()
		if err := w.as(root).Get(ctx, client.ObjectKeyFromObject(o), have); err != nil {
			return err
		}
		o.SetResourceVersion(have.GetResourceVersion())
		return c.Update(ctx, o, client.DryRunAll)
	case a.patch != "" && a.status:
		return c.Status().Patch(ctx, o, patch, client.DryRunAll)
	case a.patch != "":
		return c.Patch(ctx, o, patch, client.DryRunAll)
	}
	return c.Create(ctx, o, client.DryRunAll)
}

// play waits until the last policy of the files is in force, and then makes each
// attempt.
func (w *world) play(attempts []attempt) {
	w.t.Helper()
	w.inForce(attempts)
	for _, a := range attempts {
		w.t.Run(a.name, func(t *testing.T) {
			err := w.try(t.Context(), a)
			switch {
			case a.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case a.refused != "" && (err == nil || !strings.Contains(err.Error(), a.refused)):
				t.Errorf("%v, want a refusal that contains %q", err, a.refused)
			}
		})
	}
}

// inForce waits until the first attempt that a policy refuses is refused, and
// the first that is allowed is allowed: the API server learns of policies,
// parameters and roles by watches.
func (w *world) inForce(attempts []attempt) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience.Of(w.t))
	defer cancel()
	for _, a := range attempts {
		for {
			err := w.try(ctx, a)
			if a.refused == "" && err == nil || a.refused != "" && err != nil && strings.Contains(err.Error(), a.refused) {
				break
			}
			if ctx.Err() != nil {
				return // the attempts themselves report it
			}
		}
	}
}

const mac = "{apiVersion: metalfleet.dev/v1alpha1, kind: MacNode, metadata: {name: studio}}"

// TestOnlyTheOperatorOrdersMacs: rights to write MacNodes are no rights to run
// code on a Mac.
func TestOnlyTheOperatorOrdersMacs(t *testing.T) {
	agent := `{"spec":{"agent":{"version":"v9.0.0","source":"https://evil.example.net/a.tar.gz","sha256":"` + strings.Repeat("a", 64) + `","attempt":1}}}`
	assigned := strings.ReplaceAll(mac, "MacNode", "MacAssignment")
	unscheduled, tainted := `{"spec":{"unschedulable":true}}`, `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`
	const orders, more, cordon = "only the operator may write a MacAssignment", "needs the verb update on macnodes", "needs the verb update on macnodes/cordon"
	const hub, classes = `{"spec":{"settings":{"hubEndpoint":"https://hub.example.net"}}}`, "needs the verb update on macclasses"
	w := newWorld(t)
	w.play([]attempt{
		{name: "an administrator orders an agent", who: root, object: assigned, patch: agent, refused: orders},
		{name: "the fleet's administrator orders an agent", who: fleet, object: assigned, patch: agent, refused: orders},
		{name: "a Mac orders its agent", who: studio, object: assigned, patch: agent, refused: "denied request"},
		{name: "a backup without assignments replaces one", who: root, object: assigned, update: true, refused: orders},
		{name: "a backup is restored", who: root, object: strings.ReplaceAll(assigned, "studio", "new"), refused: orders},
		{name: "an administrator confirms one", who: root, object: assigned, patch: `{"status":{"observedGeneration":1}}`, status: true, refused: orders},
		{name: "the garbage collector writes a finalizer", who: root, object: assigned, patch: `{"metadata":{"finalizers":["a.example/b"]}}`},
		{name: "a new Mac", who: fleet, object: "{apiVersion: metalfleet.dev/v1alpha1, kind: MacNode, metadata: {name: new}}"},
		{name: "the operator orders an agent", who: operator, object: assigned, patch: agent},
		{name: "the operator withdraws inspections", who: operator, object: assigned, patch: `{"spec":{"inspections":null}}`},
		{name: "a person on call cordons", who: oncall, object: mac, patch: unscheduled},
		{name: "the fleet's administrator cordons", who: fleet, object: mac, patch: unscheduled},
		{name: "a right to patch is none to cordon", who: patcher, object: mac, patch: unscheduled, refused: cordon},
		{name: "a person on call taints", who: oncall, object: mac, patch: tainted, refused: more},
		{name: "a person on call labels", who: oncall, object: mac, patch: `{"metadata":{"labels":{"a":"b"}}}`, refused: more},
		{name: "a person on call removes a finalizer", who: oncall, object: mac, patch: `{"metadata":{"finalizers":["a.example/b"]}}`, refused: more},
		{name: "a person on call lowers the ceiling", who: oncall, object: mac, patch: `{"spec":{"memory":{"ceiling":"1Gi"}}}`, refused: more},
		{name: "the fleet's administrator taints", who: fleet, object: mac, patch: tainted},
		{name: "the fleet's administrator names another hub", who: fleet, object: mac, patch: hub, refused: classes},
		{name: "the fleet's administrator allows a network", who: fleet, object: mac, patch: `{"spec":{"settings":{"allowedSourceCIDRs":["10.0.0.0/8"]}}}`, refused: classes},
		{name: "the fleet's administrator names a folder", who: fleet, object: mac, patch: `{"spec":{"settings":{"modelRoot":"/Users"}}}`, refused: classes},
		{name: "a new Mac with another hub", who: fleet, object: "{apiVersion: metalfleet.dev/v1alpha1, kind: MacNode, metadata: {name: hub}, spec: {settings: {hubEndpoint: \"https://hub.example.net\"}}}", refused: classes},
		{name: "the fleet's administrator changes a log level", who: fleet, object: mac, patch: `{"spec":{"settings":{"logLevel":"Debug"}}}`},
		{name: "an administrator names another hub", who: root, object: mac, patch: hub},
		{name: "the fleet's administrator leaves it, and chooses a class", who: fleet, object: mac, patch: `{"spec":{"class":"lab","settings":{"logLevel":"Info"}}}`},
		{name: "a tenant makes a replica", who: mallory, object: replica, refused: "only the operator may create a ModelReplica"},
		{name: "an administrator makes a replica", who: root, object: replica, refused: "only the operator may create a ModelReplica"},
	})
}

// TestAPersonOnCallEvictsReplicas: and changes nothing else of them.
func TestAPersonOnCallEvictsReplicas(t *testing.T) {
	w := newWorld(t)
	o := object(t, replica)
	if err := w.as(operator).Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.as(root).Delete(context.Background(), o); err != nil {
			t.Error(err)
		}
	})
	const more = "needs the verb update on modelreplicas"
	w.play([]attempt{
		{name: "evicts", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"true"}}}`},
		{name: "marks it as retiring", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/retiring":"true"}}}`, refused: more},
		{name: "evicts and marks it", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"true","a":"b"}}}`, refused: more},
		{name: "labels it", who: oncall, object: replica, patch: `{"metadata":{"labels":{"metalfleet.dev/deployment":"other"}}}`, refused: more},
		{name: "writes a long annotation", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"` + strings.Repeat("x", 65) + `"}}}`, refused: "more than 64 characters"},
		{name: "an administrator does", who: root, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"` + strings.Repeat("x", 130<<10) + `"}}}`, refused: "may take 128 KiB"},
		{name: "writes a finalizer", who: oncall, object: replica, patch: `{"metadata":{"finalizers":["a.example/b"]}}`, refused: more},
		{name: "the garbage collector writes a finalizer", who: root, object: replica, patch: `{"metadata":{"finalizers":["a.example/b"]}}`},
		{name: "the operator retires it", who: operator, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/retiring":"true"}}}`},
	})
}

// TestOnlyTheOperatorWritesWhatItReads: gateways route by the status of a
// deployment, and Macs serve the record of its revision.
func TestOnlyTheOperatorWritesWhatItReads(t *testing.T) {
	const label, owned, refused = "labels: {metalfleet.dev/deployment: mine}", "ownerReferences: [{apiVersion: metalfleet.dev/v1alpha1, kind: ModelDeployment, name: mine, uid: u, controller: true}]",
		"only the operator may create or change the ControllerRevision"
	revision := func(name, metadata string) string {
		return "{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: " + name + ", namespace: tenant, " + metadata + "}, revision: 1, data: {source: a}}"
	}
	w := newWorld(t)
	if err := w.as(operator).Create(t.Context(), object(t, revision("made", label+", "+owned))); err != nil {
		t.Fatal(err)
	}
	for _, o := range []string{deployment("mine", "hf://org/model", ", servedNames: [tenant/mine]"), revision("foreign", "labels: {a: b}")} {
		if err := w.as(root).Create(t.Context(), object(t, o)); err != nil {
			t.Fatal(err)
		}
	}
	mine, made, foreign := deployment("mine", "hf://org/model", ""), revision("made", label), revision("foreign", "labels: {a: b}")
	const names = `{"status":{"servedNames":["gpt-4o"]}}`
	const owner = `{"apiVersion":"metalfleet.dev/v1alpha1","kind":"ModelDeployment","name":"mine","uid":"u","blockOwnerDeletion":false}`
	w.play([]attempt{
		{name: "a tenant serves a name by its status", who: mallory, object: mine, status: true, patch: names, refused: "only the operator may"},
		{name: "an administrator does", who: root, object: mine, status: true, patch: names, refused: "only the operator may"},
		{name: "the operator does", who: operator, object: mine, status: true, patch: names},
		{name: "a tenant changes the spec", who: mallory, object: mine, patch: `{"spec":{"replicas":2}}`},
		{name: "a few finalizers", who: mallory, object: mine, patch: `{"metadata":{"finalizers":["a.example/b","a.example/c"]}}`},
		{name: "many finalizers", who: mallory, object: mine, patch: `{"metadata":{"finalizers":[` + repeated(`"a.example/%d"`, 17) + `]}}`, refused: "at most 16 finalizers"},
		{name: "many owners", who: mallory, object: mine, patch: `{"metadata":{"ownerReferences":[` + repeated(`{"apiVersion":"v1","kind":"Pod","name":"p","uid":"%d"}`, 17) + `]}}`, refused: "at most 16 ownerReferences"},
		{name: "many labels", who: mallory, object: mine, patch: `{"metadata":{"labels":{` + repeated(`"l%d":""`, 129) + `}}}`, refused: "at most 128 labels"},
		{name: "long annotations", who: mallory, object: mine, patch: `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 100<<10) + `"}}}`},
		{name: "long annotations as JSON", who: mallory, object: mine, patch: `{"metadata":{"annotations":{"a":"` + strings.Repeat("<", 22<<10) + `"}}}`, refused: "may take 128 KiB"},
		{name: "a long owner", who: mallory, object: mine, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"` + strings.Repeat("x", 128<<10) + `","uid":"u"}]}}`, refused: "may take 128 KiB"},
		{name: "a large affinity", who: mallory, object: mine, patch: affinity(24)},
		{name: "a larger affinity", who: mallory, object: mine, patch: affinity(36), refused: "may take 64 KiB"},
		{name: "the largest affinity", who: mallory, object: mine, patch: affinity(512), refused: "may take 64 KiB"},
		{name: "many managers", who: mallory, object: mine, patch: `{"metadata":{"managedFields":[` + repeated(`{"manager":"m%d","operation":"Apply","apiVersion":"metalfleet.dev/v1alpha1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}`, 33) + `]}}`, refused: "at most 32 field managers"},
		{name: "a profile with many finalizers", who: root, object: "{apiVersion: metalfleet.dev/v1alpha1, kind: ModelProfile, metadata: {name: p, namespace: tenant, finalizers: [" + repeated("a.example/%d", 17) + "]}}", refused: "at most 16 finalizers"},
		{name: "a revision of a deployment", who: mallory, object: revision("forged", owned), refused: refused},
		{name: "a revision with the label", who: mallory, object: revision("forged", label), refused: refused},
		{name: "a revision becomes a deployment's", who: mallory, object: foreign, patch: `{"metadata":{"labels":{"metalfleet.dev/deployment":"mine"}}}`, refused: refused},
		{name: "an old revision becomes the newest", who: mallory, object: made, patch: `{"revision":9}`, refused: refused},
		{name: "another owner", who: mallory, object: made, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"p","controller":true}]}}`, refused: refused},
		{name: "a longer owner", who: mallory, object: made, patch: `{"metadata":{"ownerReferences":[` + strings.Replace(owner, "mine", strings.Repeat("x", 1<<20), 1) + `]}}`, refused: refused},
		{name: "the garbage collector unblocks an owner", who: root, object: made, patch: `{"metadata":{"ownerReferences":[` + owner + `]}}`},
		{name: "a revision leaves its deployment", who: mallory, object: made, patch: `{"metadata":{"labels":null}}`, refused: refused},
		{name: "the garbage collector removes an owner", who: root, object: made, patch: `{"metadata":{"ownerReferences":null}}`},
		{name: "a finalizer", who: root, object: made, patch: `{"metadata":{"finalizers":["foregroundDeletion"]}}`},
		{name: "a tenant deletes a revision", who: mallory, object: made, remove: true},
		{name: "a revision of another controller", who: mallory, object: revision("other", "labels: {a: b}")},
		{name: "the operator makes the newest", who: operator, object: made, patch: `{"revision":9}`},
	})
}

// affinity patches a deployment with an affinity of a number of expressions, of 2 KiB each.
func affinity(expressions int) string {
	e := `{"key":"k","operator":"In","values":[` + repeated(`"`+strings.Repeat("v", 61)+`%02d"`, 32) + `]}`
	term := func(n int) string {
		return `{"matchExpressions":[` + strings.TrimSuffix(strings.Repeat(e+",", n), ",") + `]}`
	}
	var required, preferred []string
	for n := 0; n < expressions; n += 16 {
		if t := term(min(16, expressions-n)); len(required) < 16 {
			required = append(required, t)
		} else {
			preferred = append(preferred, `{"weight":1,"preference":`+t+`}`)
		}
	}
	return `{"spec":{"placement":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + strings.Join(required, ",") +
		`]},"preferredDuringSchedulingIgnoredDuringExecution":[` + strings.Join(preferred, ",") + `]}}}}}`
}

// repeated joins a format of a number, often.
func repeated(format string, n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return strings.Join(all, ",")
}

// TestAnAgentRenewsItsLeaseAndNoMore: a finalizer would keep a Lease, an owner would have it
// block the deletion of another object, and the operator has all Leases in memory.
func TestAnAgentRenewsItsLeaseAndNoMore(t *testing.T) {
	lease := "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: mac-studio, namespace: " + system + "}}"
	w := newWorld(t)
	for _, o := range []string{lease, "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: lease, namespace: " + system + "}, rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update, patch]}]}",
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: lease, namespace: " + system + "}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: lease}, subjects: [{kind: User, name: \"" + studio + "\"}]}"} {
		if err := w.as(root).Create(t.Context(), object(t, o)); err != nil {
			t.Fatal(err)
		}
	}
	const refused = "may not change the finalizers, owners and generateName"
	long := strings.Repeat("x", 257)
	w.play([]attempt{
		{name: "a finalizer", who: studio, object: lease, patch: `{"metadata":{"finalizers":["a.example/b"]}}`, refused: refused},
		{name: "an owner", who: studio, object: lease, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"p","blockOwnerDeletion":true}]}}`, refused: refused},
		{name: "a generateName", who: studio, object: lease, patch: `{"metadata":{"generateName":"x"}}`, refused: refused},
		{name: "a renewal", who: studio, object: lease, patch: `{"metadata":{"annotations":{"metalfleet.dev/fenced-agent":"b"}},"spec":{"holderIdentity":"me"}}`},
		{name: "an annotation", who: studio, object: lease, patch: `{"metadata":{"annotations":{"a":"b"}}}`, refused: "only the annotation"},
		{name: "a long annotation", who: studio, object: lease, patch: `{"metadata":{"annotations":{"metalfleet.dev/fenced-agent":"` + long + `"}}}`, refused: "only the annotation"},
		{name: "a label", who: studio, object: lease, patch: `{"metadata":{"labels":{"a":"b"}}}`, refused: "no labels"},
		{name: "a long holder", who: studio, object: lease, patch: `{"spec":{"holderIdentity":"` + long + `"}}`, refused: "at most 256 characters"},
		{name: "an administrator's finalizer", who: root, object: lease, patch: `{"metadata":{"finalizers":["a.example/b"]}}`},
	})
}

const replica = `
apiVersion: metalfleet.dev/v1alpha1
kind: ModelReplica
metadata: {name: r, namespace: tenant}
spec:
  deploymentRef: {name: d, uid: u}
  revision: r
  epoch: 1
  reservedBytes: 1
  desired: Running
  context: {maxTokens: 16, maxConcurrentRequests: 1, kvCacheTokens: 32}
  model: {source: "file://team-a/private.gguf", format: gguf, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000",
    files: [{path: m.gguf, bytes: 1, sha256: "0000000000000000000000000000000000000000000000000000000000000000"}],
    facts: {architecture: llama, layers: 1, growingLayers: 1, hiddenSize: 64, feedForwardSize: 64, queryHeads: 1, keyValueHeads: 1, headSize: 64, vocabularySize: 100, contextTokens: 100, keyValueElementBytes: 2, weightBytes: 1000}}
`

// TestThePolicyNamesEveryFieldOfAMac: a field that it does not compare could be
// written by anyone who may patch MacNodes.
func TestThePolicyNamesEveryFieldOfAMac(t *testing.T) {
	text, err := os.ReadFile("../rbac/writes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd, err := os.ReadFile("../crd/metalfleet.dev_macnodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := object(t, strings.TrimPrefix(string(crd), "---\n"))
	versions, _, err := unstructured.NestedSlice(o.Object, "spec", "versions")
	if err != nil || len(versions) == 0 {
		t.Fatalf("versions %v, %v", versions, err)
	}
	fields, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties")
	if err != nil || len(fields) < 6 {
		t.Fatalf("fields %v, %v", fields, err)
	}
	for f := range fields {
		if !strings.Contains(string(text), "variables.before.?"+f) || !strings.Contains(string(text), "variables.after.?"+f) {
			t.Errorf("metalfleet-macnode-writes does not compare spec.%s", f)
		}
	}
}

// rbac is an object of the group rbac.authorization.k8s.io.
func rbac(kind, name, rest string) string {
	return "{apiVersion: rbac.authorization.k8s.io/v1, kind: " + kind + ", metadata: {name: " + name + rest + "}"
}

// TestTheOperatorWritesOnlyRolesOfMacs: a compromised operator cannot lock out a
// cluster, nor share its own rights.
func TestTheOperatorWritesOnlyRolesOfMacs(t *testing.T) {
	const foreign, subject, rules = "only the roles and bindings of Macs", "only to the account of that Mac", "only the objects of that Mac"
	account := `[{kind: User, apiGroup: rbac.authorization.k8s.io, name: "` + studio + `"}]`
	ref := func(name string) string {
		return "}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: " + name + "}, subjects: "
	}
	own := "}, rules: [{apiGroups: [metalfleet.dev], resources: [macnodes], resourceNames: [studio], verbs: [get]}, {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create]}]"
	here := ", namespace: " + system
	w := newWorld(t)
	// The API server looks at a role before policies judge who binds it.
	if err := w.as(root).Create(t.Context(), object(t, rbac("ClusterRole", "metalfleet-mac-studio", own))); err != nil {
		t.Fatal(err)
	}
	w.play([]attempt{
		{name: "delete the binding cluster-admin", who: operator, object: rbac("ClusterRoleBinding", "cluster-admin", "}"), remove: true, refused: foreign},
		{name: "delete the scheduler's role", who: operator, object: rbac("ClusterRole", "system:kube-scheduler", "}"), remove: true, refused: foreign},
		{name: "empty a role", who: operator, object: rbac("ClusterRole", "system:kube-dns", "}, rules: []"), update: true, refused: foreign},
		{name: "share its rights", who: operator, object: rbac("ClusterRoleBinding", "gift", ref("metalfleet-operator")+"[{kind: Group, name: system:unauthenticated, apiGroup: rbac.authorization.k8s.io}]"), refused: foreign},
		{name: "bind cluster-admin", who: operator, object: rbac("ClusterRoleBinding", "gift", ref("cluster-admin")+"[{kind: Group, name: system:authenticated, apiGroup: rbac.authorization.k8s.io}]"), refused: "attempting to grant RBAC permissions"},
		{name: "share its rights under a Mac's name", who: operator, object: rbac("ClusterRoleBinding", "metalfleet-mac-studio", ref("metalfleet-operator")+account), refused: subject},
		{name: "a Mac's rights for all", who: operator, object: rbac("ClusterRoleBinding", "metalfleet-mac-studio", ref("metalfleet-mac-studio")+"[{kind: Group, name: system:authenticated, apiGroup: rbac.authorization.k8s.io}]"), refused: subject},
		{name: "rights to all Macs", who: operator, object: rbac("ClusterRole", "metalfleet-mac-studio", "}, rules: [{apiGroups: [metalfleet.dev], resources: [macnodes], verbs: [get]}]"), update: true, refused: rules},
		{name: "rights to another Mac", who: operator, object: rbac("ClusterRole", "metalfleet-mac-studio", "}, rules: [{apiGroups: [metalfleet.dev], resources: [macnodes], resourceNames: [other], verbs: [get]}]"), update: true, refused: rules},
		{name: "rights to the authority", who: operator, object: rbac("Role", "mac-studio", here+"}, rules: [{apiGroups: [\"\"], resources: [secrets], resourceNames: [metalfleet-ca], verbs: [get]}]"), refused: rules},
		{name: "a role of its own", who: operator, object: rbac("Role", "metalfleet-operator", here+"}"), remove: true, refused: foreign},
		{name: "the role of a Mac", who: operator, object: rbac("ClusterRole", "metalfleet-mac-mini", strings.ReplaceAll(own, "studio", "mini"))},
		{name: "the role of a Mac changes", who: operator, object: rbac("ClusterRole", "metalfleet-mac-studio", own), update: true},
		{name: "the binding of a Mac", who: operator, object: rbac("ClusterRoleBinding", "metalfleet-mac-studio", ref("metalfleet-mac-studio")+account)},
		{name: "the local role of a Mac", who: operator, object: rbac("Role", "mac-studio", here+"}, rules: [{apiGroups: [\"\"], resources: [secrets], resourceNames: [mac-studio], verbs: [get]}]")},
		{name: "an administrator empties a role", who: root, object: rbac("ClusterRole", "system:kube-dns", "}, rules: []"), update: true},
	})
	for _, namespace := range []string{"tenant", "kube-system"} {
		err := w.as(operator).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "db"}, &corev1.Secret{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("the operator reads a Secret of %s: %v", namespace, err)
		}
	}
	binding := object(t, rbac("RoleBinding", "metalfleet", ", namespace: tenant}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metalfleet-secret-reader}, "+
		"subjects: [{kind: ServiceAccount, name: metalfleet-operator, namespace: "+system+"}]"))
	if err := w.as(root).Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	w.eventually(func() error {
		return w.as(operator).Get(t.Context(), client.ObjectKey{Namespace: "tenant", Name: "db"}, &corev1.Secret{})
	})
}

// TestAttackOthersTakeTheSlotsOfAnEnrolment: a request of another signer under their names stays
// until Kubernetes collects it, and a Mac with the token cannot delete it.
func TestAttackOthersTakeTheSlotsOfAnEnrolment(t *testing.T) {
	const refused = "are for the enrolment token NAME"
	request := func(name, signer string) string {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		text := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		return "{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: " + name + "}, spec: {signerName: " + signer +
			", usages: [digital signature, server auth], request: " + text + "}}"
	}
	newWorld(t).play([]attempt{
		{name: "of another signer", who: root, object: request("metalfleet-enrol-lab.07", "example.com/other"), refused: refused},
		{name: "of ours", who: root, object: request("metalfleet-enrol-lab.07", "metalfleet.dev/agent"), refused: refused},
		{name: "of ours under another name", who: root, object: request("anyone", "metalfleet.dev/agent"), refused: "only accounts of Macs"},
		{name: "under another name", who: root, object: request("someone", "example.com/other")},
	})
}

// TestTheOperatorSignsAndSpeaksForItsOwnAlone: its rights end at its signer and at its
// namespace.
func TestTheOperatorSignsAndSpeaksForItsOwnAlone(t *testing.T) {
	w := newWorld(t)
	signer := func(verb, name string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "signers", Verb: verb, Name: name}
	}
	token := func(namespace string) authorizationv1.ResourceAttributes {
		return authorizationv1.ResourceAttributes{Namespace: namespace, Resource: "serviceaccounts", Subresource: "token", Verb: "create", Name: "x"}
	}
	for _, c := range []struct {
		asks authorizationv1.ResourceAttributes
		may  bool
	}{
		{signer("sign", "metalfleet.dev/agent"), true},
		{signer("sign", "kubernetes.io/kube-apiserver-client"), false},
		{signer("approve", "kubernetes.io/kube-apiserver-client"), false},
		{token(system), true},
		{token("kube-system"), false},
		{token("tenant"), false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: operator, Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: &c.asks,
		}}
		if err := w.as(root).Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != c.may {
			t.Errorf("%+v: allowed %t, want %t", c.asks, review.Status.Allowed, c.may)
		}
	}
}

func (w *world) eventually(ask func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience.Of(w.t))
	defer cancel()
	for err := ask(); err != nil; err = ask() {
		if ctx.Err() != nil {
			w.t.Fatal(err)
		}
	}
}

// TestAMacAdvertisesNoAddressOfGateways: a gateway would connect to itself, or to
// the metadata service of its node.
func TestAMacAdvertisesNoAddressOfGateways(t *testing.T) {
	var attempts []attempt
	for host, refused := range map[string]string{
		"169.254.169.254": "link-local", "127.0.0.1": "loopback", "127.9.9.9": "loopback", "::1": "loopback", "fe80::1": "link-local", "0.0.0.0": "unspecified", "::": "unspecified",
		"::ffff:127.0.0.1": "unusual form", "127.1": "unusual form", "2130706433": "unusual form", "0x7f.0.0.1": "unusual form", "127.0.0.1.": "unusual form",
		"localhost": "localhost", "LOCALHOST.": "localhost", "a.localhost": "localhost",
		"10.1.2.3": "", "192.168.1.20": "", "2001:db8::7": "", "studio.local": "", "mac-1.example.com": "", "mac1": "",
	} {
		attempts = append(attempts, attempt{name: host, who: fleet, object: mac, status: true, patch: `{"status":{"address":{"host":"` + host + `","port":7443}}}`, refused: refused})
	}
	newWorld(t).play(attempts)
}

// deployment is one of a tenant, with more in its spec.
func deployment(name, source, more string) string {
	return `{apiVersion: metalfleet.dev/v1alpha1, kind: ModelDeployment, metadata: {name: ` + name + `, namespace: tenant}, spec: {model: {source: "` + source + `"}` + more + `}}`
}

// TestATenantGetsWhatItsNamespaceIsAllowed: by default public sources, the names of
// its namespace, and neither priority nor taints.
func TestATenantGetsWhatItsNamespaceIsAllowed(t *testing.T) {
	const own, hub = ", servedNames: [tenant/a]", "hf://org/model"
	w := newWorld(t)
	w.play([]attempt{
		{name: "a foreign file", who: mallory, object: deployment("a", "file://team-a/private.gguf", own), refused: "may not use the source"},
		{name: "a foreign file by way of its own folder", who: mallory, object: deployment("a", "file://tenant/../team-a/private.gguf", own), refused: "may not use the source"},
		{name: "a foreign file in disguise", who: mallory, object: deployment("a", "file://tenant/%2E%2e/team-a/private.gguf", own), refused: "may not use the source"},
		{name: "a folder whose name begins alike", who: mallory, object: deployment("a", "file://tenant2/private.gguf", own), refused: "may not use the source"},
		{name: "its own file", who: mallory, object: deployment("a", "file://tenant/a.gguf", own)},
		{name: "a foreign adapter", who: mallory, object: deployment("a", "file://tenant/a", own+", adapters: [{name: one, source: file://team-a/private}]"), refused: "may not use the source file://team-a/private"},
		{name: "a foreign adapter in disguise", who: mallory, object: deployment("a", "file://tenant/a", own+", adapters: [{name: one, source: file://tenant/%2E%2e/team-a/private}]"), refused: "may not use the source"},
		{name: "its own adapter", who: mallory, object: deployment("a", "file://tenant/a", own+", adapters: [{name: one, source: file://tenant/one}]")},
		{name: "a model of the hub", who: mallory, object: deployment("a", hub, own)},
		{name: "a priority to stay in memory", who: mallory, object: deployment("a", hub, own+", residency: {policy: OnDemand, evictionPriority: 1}"), refused: "may not use a residency.evictionPriority above 0"},
		{name: "the lowest priority", who: mallory, object: deployment("a", hub, own+", residency: {policy: OnDemand, evictionPriority: -1000}")},
		{name: "a bucket anywhere", who: mallory, object: deployment("a", "s3://models/x?endpoint=https://minio.example", own)},
		{name: "a pull request anywhere", who: mallory, object: deployment("a", hub+"@refs%2Fpr%2F7", own)},
		{name: "a control character in files", who: mallory, object: strings.Replace(deployment("a", hub, own), "model: {", `model: {files: ["a\0b"], `, 1), refused: "without control characters"},
		{name: "its full name under another object name", who: mallory, object: deployment("b", hub, ", servedNames: [tenant/b, tenant/c]")},
		{name: "a squatted name", who: mallory, object: deployment("a", hub, ", servedNames: [gpt-4o]"), refused: "may not serve the name gpt-4o"},
		{name: "a squatted object name", who: mallory, object: deployment("gpt-4o", hub, ""), refused: "may not serve the name gpt-4o"},
		{name: "another namespace's name", who: mallory, object: deployment("a", hub, ", servedNames: [team-a/a]"), refused: "may not serve the name team-a/a"},
		{name: "system-node-critical", who: mallory, object: deployment("a", hub, own+", priorityClassName: system-node-critical"), refused: "may not use the priority class system-node-critical"},
		{name: "a toleration", who: mallory, object: deployment("a", hub, own+", placement: {tolerations: [{key: dedicated, operator: Exists}]}"), refused: "may not tolerate the taint dedicated"},
		{name: "a toleration of everything", who: mallory, object: deployment("a", hub, own+", placement: {tolerations: [{operator: Exists}]}"), refused: "may not tolerate the taint *"},
		{name: "an administrator keeps the rules of the namespace", who: root, object: deployment("gpt-4o", hub, ""), refused: "may not serve the name"},
	})
	w.allow(`sources: ["hf://org/*", "file://shared/*"], servedNames: [gpt-4o, "team-a/*"], priorityClasses: [urgent], tolerations: [dedicated]`)
	w.play([]attempt{
		{name: "a shared file", who: mallory, object: deployment("gpt-4o", "file://shared/a.gguf", "")},
		{name: "what only the default allows", who: mallory, object: deployment("gpt-4o", "file://tenant/a.gguf", ""), refused: "may not use the source"},
		{name: "another owner on the hub", who: mallory, object: deployment("gpt-4o", "hf://other/model", ""), refused: "may not use the source"},
		{name: "allowed names", who: mallory, object: deployment("a", hub, ", servedNames: [gpt-4o, team-a/x]")},
		{name: "an adapter of an allowed pattern, and of its full name", who: mallory, object: deployment("a", hub, ", servedNames: [team-a/x, tenant/a], adapters: [{name: one, source: hf://org/one}]")},
		{name: "an adapter of an allowed name, which is another name", who: mallory, object: deployment("a", hub, ", servedNames: [gpt-4o], adapters: [{name: one, source: hf://org/one}]"), refused: "may not serve the name gpt-4o:one"},
		{name: "an allowed priority", who: mallory, object: deployment("gpt-4o", hub, ", priorityClassName: urgent")},
		{name: "another priority", who: mallory, object: deployment("gpt-4o", hub, ", priorityClassName: system-node-critical"), refused: "may not use the priority class"},
		{name: "an allowed toleration", who: mallory, object: deployment("gpt-4o", hub, ", placement: {tolerations: [{key: dedicated, operator: Exists}]}")},
	})
	w.ratchet()
	w.sources()
}

// sources: an entry of a list allows nothing of strangers.
func (w *world) sources() {
	w.allow(`sources: ["s3://models/*", "s3://own/a/*?endpoint=https://minio.example", "hf://org/*", "hf://one/model", "https://models.example/team/*"], servedNames: [], maxEvictionPriority: 10`)
	const refused = "may not use the source"
	var attempts []attempt
	for source, allowed := range map[string]bool{
		"s3://models/x":                                                true,
		"s3://models/x?region=eu-west-1":                               true,
		"s3://models/x?endpoint=https://evil.example":                  false,
		"s3://models/?endpoint=https://evil.example":                   false,
		"s3://models/x?region=eu-west-1&endpoint=https://evil.example": false,
		"s3://models/x?%65ndpoint=https://evil.example":                false,
		"s3://own/a/x?endpoint=https://minio.example":                  true,
		"s3://own/a/x": false,
		"s3://own/b/x?endpoint=https://minio.example":                          false,
		"s3://own/a/../b?endpoint=https://minio.example":                       false,
		"s3://own/a/x?endpoint=https://minio.example.evil.example":             false,
		"s3://own/a/x?endpoint=https://evil&x=?endpoint=https://minio.example": false,
		"hf://org/model":                    true,
		"hf://org/model@v1.0":               true,
		"hf://org/model@feature%2Fx/folder": true,
		"hf://org/model@refs%2Fpr%2F7":      false,
		"hf://org/model@Refs%2fpr%2F7/4bit": false,
		"hf://org/model@%72efs%2Fpr%2F7":    false,
		"hf://org/model@pr%2F7":             false,
		"hf://other/model":                  false,
	} {
		a := attempt{name: source, who: mallory, object: deployment("a", source, ", servedNames: [tenant/a]")}
		if !allowed {
			a.refused = refused
		}
		// The source of an adapter is judged in the same way.
		b := a
		b.name, b.object = "an adapter of "+source, deployment("a", "hf://org/model", `, servedNames: [tenant/a], adapters: [{name: good, source: "hf://org/good"}, {name: one, source: "`+source+`"}]`)
		attempts = append(attempts, a, b)
	}
	// A folder that a server takes for the one above, with anything after it.
	for after, refused := range map[string]string{
		"x.gguf": "", "x..gguf": "", "..x/y.gguf": "", "x.gguf?part=..": "",
		"..": refused, "../x": refused, "..?file=/other/x": refused, "..#x": refused, "..;a/x": refused, "x%5c..%5cy": refused, `x\\..\\y`: refused,
	} {
		object := deployment("a", "https://models.example/team/"+after, ", servedNames: [tenant/a]")
		object = strings.Replace(object, "model: {", `model: {sha256: "`+strings.Repeat("0", 64)+`", `, 1)
		attempts = append(attempts, attempt{name: "https with " + after, who: mallory, object: object, refused: refused})
	}
	revision := func(source, r string) string {
		return strings.Replace(deployment("a", source, ", servedNames: [tenant/a]"), "model: {", "model: {revision: "+r+", ", 1)
	}
	newWorld(w.t).play(append(attempts,
		attempt{name: "a branch", who: mallory, object: revision("hf://org/model", "v2/a")},
		attempt{name: "a pull request by model.revision", who: mallory, object: revision("hf://org/model", "refs/pr/7"), refused: refused},
		attempt{name: "a pull request to the one model", who: mallory, object: revision("hf://one/model", "refs/pr/7"), refused: refused},
		attempt{name: "a pull request as an adapter", who: mallory, object: deployment("a", "hf://org/model", ", servedNames: [tenant/a], adapters: [{name: one, source: hf://org/one, revision: refs/pr/7}]"), refused: refused},
		attempt{name: "a branch as an adapter", who: mallory, object: deployment("a", "hf://org/model", ", servedNames: [tenant/a], adapters: [{name: one, source: hf://org/one, revision: v2/a}]")},
		attempt{name: "an adapter of a stranger", who: mallory, object: deployment("gpt-4o", "", ""), patch: `{"spec":{"adapters":[{"name":"one","source":"hf://other/one"}]}}`, refused: "may not use the source hf://other/one"},
		attempt{name: "an old source stays", who: mallory, object: deployment("gpt-4o", "", ""), patch: `{"spec":{"replicas":3}}`},
		attempt{name: "a priority up to the bound", who: mallory, object: deployment("a", "hf://org/model", ", servedNames: [tenant/a], residency: {policy: OnDemand, evictionPriority: 10}")},
		attempt{name: "a higher one", who: mallory, object: deployment("a", "hf://org/model", ", servedNames: [tenant/a], residency: {policy: OnDemand, evictionPriority: 11}"), refused: "residency.evictionPriority above 10"},
	))
}

// TestARuleOfSourcesSeesFieldsAsTheirURL: a list that names each URL allows what states the
// same in fields, and nothing else. The URLs are those of ModelSource.Resolved.
func TestARuleOfSourcesSeesFieldsAsTheirURL(t *testing.T) {
	const refused, digest = "may not use the source", `"0000000000000000000000000000000000000000000000000000000000000000"`
	var urls []string
	var attempts []attempt
	for model, url := range map[string]string{
		`huggingFace: {repo: org/model}`:                                            "hf://org/model",
		`huggingFace: {repo: org/model2}`:                                           refused,
		`huggingFace: {repo: any/model, revision: v2}`:                              "hf://any/*",
		`huggingFace: {repo: any/model, revision: refs/pr/7}`:                       refused,
		`s3: {bucket: models}`:                                                      "s3://models/",
		`s3: {bucket: models, prefix: a/b}`:                                         "s3://models/a/b",
		`s3: {bucket: models, prefix: a}`:                                           refused,
		`s3: {bucket: models, prefix: a/b, region: eu-west-1}`:                      "s3://models/a/b?region=eu-west-1",
		`s3: {bucket: models, prefix: a/b, endpoint: "https://o.example:9"}`:        "s3://models/a/b?endpoint=https://o.example:9",
		`s3: {bucket: models, prefix: a, endpoint: "https://o.example", region: r}`: "s3://models/a?endpoint=https://o.example&region=r",
		`s3: {bucket: models, prefix: a/b, endpoint: "https://evil.example"}`:       refused,
		`oci: {reference: "ghcr.io/org/model:v1"}`:                                  "oci://ghcr.io/org/model:v1",
		`oci: {reference: "ghcr.io/org/model:v2"}`:                                  refused,
		`https: {url: "https://h.example/m.gguf", sha256: ` + digest + `}`:          "https://h.example/m.gguf",
		`https: {url: "https://h.example/n.gguf", sha256: ` + digest + `}`:          refused,
		`local: {path: tenant/m.gguf}`:                                              "file://tenant/m.gguf",
		`local: {path: team-a/m.gguf}`:                                              refused,
	} {
		object := strings.Replace(deployment("a", "", ", servedNames: [tenant/a]"), `source: ""`, model, 1)
		a := attempt{name: model, who: mallory, object: object, refused: refused}
		if url != refused {
			a.refused, urls = "", append(urls, url)
		}
		attempts = append(attempts, a)
	}
	w := newWorld(t)
	w.allow(`sources: ["` + strings.Join(urls, `", "`) + `"]`)
	w.play(attempts)
}

// allow replaces the rules of the namespace of tests, after those of another one.
func (w *world) allow(rules string) {
	w.t.Helper()
	w.rules("{default: {" + defaults + "}, namespaces: [{name: other, sources: []}, {name: tenant, " + rules + "}]}")
}

// defaults are those of the file.
const defaults = `sources: ["hf://*", "oci://*", "s3://*", "https://*", "file://{namespace}/*"], servedNames: ["{namespace}/*"], priorityClasses: [], tolerations: []`

// rules replaces the spec of the NamespaceRules.
func (w *world) rules(spec string) {
	w.t.Helper()
	text := "{apiVersion: metalfleet.dev/v1alpha1, kind: NamespaceRules, metadata: {name: metalfleet}, spec: " + spec + "}"
	if err := w.as(root).Apply(w.t.Context(), client.ApplyConfigurationFromUnstructured(object(w.t, text)), client.FieldOwner("test"), client.ForceOwnership); err != nil {
		w.t.Fatal(err)
	}
}

// ratchet: rules that become stricter do not stop what exists, but what it adds.
func (w *world) ratchet() {
	w.allow(`sources: ["file://shared/*"], servedNames: ["gpt-4o*"], priorityClasses: [urgent], tolerations: [dedicated]`)
	o := object(w.t, deployment("gpt-4o", "file://shared/a.gguf", ", adapters: [{name: one, source: file://shared/one}], priorityClassName: urgent, placement: {tolerations: [{key: dedicated, operator: Exists}]}"))
	w.eventually(func() error { return w.as(mallory).Create(w.t.Context(), o.DeepCopy()) })
	w.allow(`sources: [], servedNames: [], priorityClasses: [], tolerations: []`)
	old := deployment("gpt-4o", "file://shared/a.gguf", "")
	w.play([]attempt{
		{name: "another source", who: mallory, object: old, patch: `{"spec":{"model":{"source":"file://shared/b.gguf"}}}`, refused: "may not use the source file://shared/b.gguf"},
		{name: "another name", who: mallory, object: old, patch: `{"spec":{"servedNames":["gpt-4o","gpt-5"]}}`, refused: "may not serve the name gpt-5"},
		{name: "another priority", who: mallory, object: old, patch: `{"spec":{"priorityClassName":"high"}}`, refused: "may not use the priority class"},
		{name: "an adapter's other name", who: mallory, object: old, patch: `{"spec":{"adapters":[{"name":"two","source":"file://shared/one"}]}}`, refused: "may not serve the name gpt-4o:two"},
		{name: "an adapter's other source", who: mallory, object: old, patch: `{"spec":{"adapters":[{"name":"one","source":"file://shared/two"}]}}`, refused: "may not use the source file://shared/two"},
		{name: "no adapter", who: mallory, object: old, patch: `{"spec":{"adapters":[]}}`},
		{name: "more replicas", who: mallory, object: old, patch: `{"spec":{"replicas":2}}`},
		{name: "a finalizer", who: operator, object: old, patch: `{"metadata":{"finalizers":["a.example/b"]}}`},
		{name: "no priority", who: mallory, object: old, patch: `{"spec":{"priorityClassName":null}}`},
	})
}

// TestThePolicyReadsEveryListOfTheRules: one that it does not read would limit nothing.
func TestThePolicyReadsEveryListOfTheRules(t *testing.T) {
	text, err := os.ReadFile("tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd, err := os.ReadFile("../crd/metalfleet.dev_namespacerules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(object(t, strings.TrimPrefix(string(crd), "---\n")).Object, "spec", "versions")
	if err != nil || len(versions) == 0 {
		t.Fatalf("versions %v, %v", versions, err)
	}
	fields, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "default", "properties")
	if err != nil || len(fields) < 8 {
		t.Fatalf("fields %v, %v", fields, err)
	}
	placed := []string{"memoryLimit", "prefetchLimit", "replicasPerMac", "macSelector"} // by placement
	for f := range fields {
		if !slices.Contains(placed, f) && !strings.Contains(string(text), "has(r."+f+")") {
			t.Errorf("the policy does not read %s", f)
		}
	}
}

// TestAnAbsentListAllowsNothing: rules that an administrator leaves out, or has not written
// yet, are no permission.
func TestAnAbsentListAllowsNothing(t *testing.T) {
	w := newWorld(t)
	const own, hub = ", servedNames: [tenant/a]", "hf://org/model"
	w.rules(`{default: {sources: ["*"], maxEvictionPriority: 7}, namespaces: [{name: tenant, tolerations: ["*"]}]}`)
	w.play([]attempt{
		{name: "a rule of the default", who: mallory, object: deployment("a", hub, own)},
		{name: "a number of the default", who: mallory, object: deployment("a", hub, own+", residency: {policy: OnDemand, evictionPriority: 7}")},
		{name: "a higher number", who: mallory, object: deployment("a", hub, own+", residency: {policy: OnDemand, evictionPriority: 8}"), refused: "may not use a residency.evictionPriority above 7"},
		{name: "a rule of the entry", who: mallory, object: deployment("a", hub, own+", placement: {tolerations: [{operator: Exists}]}")},
		{name: "a name without a rule", who: mallory, object: deployment("a", hub, ""), refused: "may not serve the name a"},
		{name: "a priority without a rule", who: mallory, object: deployment("a", hub, own+", priorityClassName: high"), refused: "may not use the priority class high"},
	})
	w.rules("{}")
	w.play([]attempt{{name: "a source without a rule", who: mallory, object: deployment("a", hub, own), refused: "may not use the source"}})
	if err := w.as(root).Delete(t.Context(), object(t, "{apiVersion: metalfleet.dev/v1alpha1, kind: NamespaceRules, metadata: {name: metalfleet}}")); err != nil {
		t.Fatal(err)
	}
	w.play([]attempt{{name: "no rules at all", who: mallory, object: deployment("a", hub, own), refused: "no params found"}})
	w.rules("{default: {" + defaults + "}}")
	w.play([]attempt{{name: "rules again", who: mallory, object: deployment("a", hub, own)}})
}
