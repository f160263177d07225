//go:build stories

package system

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// deleteLimit of each delete: a Mac is gone after 180 s of silence.
const deleteLimit = 240 * time.Second

// TestDelete has Macs die for good, and deletes what was on them, by a deployment,
// by a namespace, and by the MacNode; and has Macs come back to find that nothing
// that they hold is wanted. Each delete ends in time, by the real timers, and
// leaves nothing on the Mac or in the API. All begin at once, each with a Mac of
// its own, so that the silence passes once.
func TestDelete(t *testing.T) {
	var macs []fleet.Mac
	for _, name := range []string{"deployment", "namespace", "draining", "macnode", "spare", "returning", "shut-out"} {
		macs = append(macs, fleet.Mac{Name: name, Chip: "M4Max", Memory: "64Gi"})
	}
	d := deletion{world: together(t, macs...)}
	for name, test := range map[string]func(*testing.T){
		"deployment, its Mac lost power":                              d.deployment,
		"namespace, its Mac lost power":                               d.ofNamespace,
		"deployment, its Mac lost power in the middle of an answer":   d.draining,
		"MacNode that lost power, with a replica":                     d.macNode,
		"deployment, its Mac lost its agent and comes back later":     d.returning,
		"MacNode that lives, with a replica; the Mac joins once more": d.shutOut,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

type deletion struct{ *world }

// serve deploys a model on a Mac and waits until it is ready there.
func (d deletion) serve(t *testing.T, m fleet.Model, change ...func(*v1alpha1.ModelDeploymentSpec)) *v1alpha1.ModelDeployment {
	t.Helper()
	md := d.deploy(t, m, change...)
	d.servedOn(t, md, m.Mac)
	return md
}

// servedOn waits until a deployment has one replica, which is ready on a Mac.
func (d deletion) servedOn(t *testing.T, md *v1alpha1.ModelDeployment, mac string) {
	t.Helper()
	eventually(t, md.Name+" is served on "+mac, func(ctx context.Context) error {
		now, err := d.read(ctx, md)
		if err != nil {
			return err
		}
		all, err := d.replicasOf(ctx, md)
		if err == nil && (len(all) != 1 || all[0].Spec.NodeName != mac || now.Status.ReadyReplicas != 1) {
			err = fmt.Errorf("%d replicas, %d ready; %s", len(all), now.Status.ReadyReplicas, sentences(now.Status.Conditions))
		}
		return err
	})
}

// deletes deletes an object and wants it gone in time.
func (d deletion) deletes(t *testing.T, o client.Object) {
	t.Helper()
	must(t, d.Client.Delete(t.Context(), o))
	d.goneInTime(t, o)
}

func (d deletion) goneInTime(t *testing.T, o client.Object) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), deleteLimit, fmt.Errorf("not within %s", deleteLimit))
	defer cancel()
	must(t, fleet.Poll(ctx, 100*time.Millisecond, o.GetName()+" is gone", func(ctx context.Context) error { return d.gone(ctx, o) }))
	t.Logf("the delete ended after %.1f s, of %.0f", time.Since(began).Seconds(), deleteLimit.Seconds())
}

// losePower ends agent and engine of a Mac at once.
func (d deletion) losePower(t *testing.T, mac string) {
	t.Helper()
	engine := d.onlyEngine(t, mac)
	must(t, d.Agent(mac).Kill())
	must(t, engine.Kill())
}

func (d deletion) onlyEngine(t *testing.T, mac string) fleet.Engine {
	t.Helper()
	engines, err := d.Agent(mac).Engines()
	if err != nil || len(engines) != 1 {
		t.Fatalf("engines %v run on Mac %s, want 1: %v", engines, mac, err)
	}
	return engines[0]
}

// deployment: the delete comes in the moment in which the Mac dies.
func (d deletion) deployment(t *testing.T) {
	md := d.serve(t, fleet.Model{Name: "deployment", Mac: "deployment"})
	d.losePower(t, "deployment")
	d.deletes(t, md)
	d.replicas(t, md, 0)
}

// ofNamespace: everything in it is deleted at once, in the order of its controller.
func (d deletion) ofNamespace(t *testing.T) {
	ns := d.world.namespace(t, "tenants")
	md := d.serve(t, fleet.Model{Namespace: ns.Name, Name: "theirs", Mac: "namespace"})
	d.losePower(t, "namespace")
	d.deletes(t, ns)
	d.replicas(t, md, 0)
}

// draining: the delete waits for an answer for up to an hour, and the Mac dies
// before its end. The time counts from its death.
func (d deletion) draining(t *testing.T) {
	md := d.serve(t, fleet.Model{Name: "draining", File: "slow.gguf", MaxTokens: slowContext, DrainSeconds: 3600, Mac: "draining"})
	stream := d.stream(t, "default/draining", slowContext-200)
	must(t, d.Client.Delete(t.Context(), md))
	eventually(t, "the replica drains", func(ctx context.Context) error {
		all, err := d.replicasOf(ctx, md)
		if err == nil && (len(all) != 1 || all[0].Status.Progress.Stage != v1alpha1.StageDraining) {
			err = fmt.Errorf("%d replicas: %v", len(all), all)
		}
		return err
	})
	d.losePower(t, "draining")
	d.goneInTime(t, md)
	if _, err := end(t, stream); err == nil {
		t.Error("the answer of a Mac that lost power ended as if it were whole")
	}
	d.replicas(t, md, 0)
}

// macNode: the administrator knows that the Mac is gone and deletes it; nothing
// waits for 180 s.
func (d deletion) macNode(t *testing.T) {
	md := d.serve(t, fleet.Model{Name: "moves", Mac: "macnode"})
	d.label(t, "spare", "macnode")
	d.losePower(t, "macnode")
	d.deletes(t, d.node(t, "macnode"))
	d.nothingOf(t, "macnode")
	d.servedOn(t, md, "spare")
}

// returning: only the agent was lost, and its engine still holds memory that is no
// longer assigned when the agent comes back.
func (d deletion) returning(t *testing.T) {
	md := d.serve(t, fleet.Model{Name: "orphan", Mac: "returning"})
	engine := d.onlyEngine(t, "returning")
	must(t, d.Agent("returning").Kill())
	d.deletes(t, md)
	if !engine.Alive() {
		t.Fatal("the engine ended by itself, so this shows nothing")
	}
	must(t, d.Agent("returning").Start())
	d.stopped(t, "returning", engine)
	// All of its memory can be promised again.
	d.serve(t, fleet.Model{Name: "heir", Mac: "returning"}, func(s *v1alpha1.ModelDeploymentSpec) {
		s.Memory.Limit = ptr.To(resource.MustParse("36Gi"))
	})
	must(t, d.CheckLedger(t.Context(), "returning"))
}

// shutOut: the Mac is taken out of the fleet while it serves, and joins again.
func (d deletion) shutOut(t *testing.T) {
	md := d.serve(t, fleet.Model{Name: "shut-out", Mac: "shut-out"})
	engine := d.onlyEngine(t, "shut-out")
	stolen := d.credentials(t, "shut-out")
	must(t, stolen.Get(t.Context(), client.ObjectKey{Name: "shut-out"}, &v1alpha1.MacNode{}))
	d.deletes(t, d.node(t, "shut-out"))
	d.nothingOf(t, "shut-out")
	d.mayNothing(t, stolen, "shut-out")
	must(t, d.Agent("shut-out").Stop(t.Context()))
	must(t, d.Join(t.Context(), d.trusting(fleet.Mac{Name: "shut-out", Chip: "M4Max", Memory: "64Gi"})))
	d.stopped(t, "shut-out", engine)
	d.label(t, "shut-out", "shut-out")
	d.servedOn(t, md, "shut-out")
	d.mayNothing(t, stolen, "shut-out")
}

// stopped wants a Mac that came back to end what it held, to report why, and to
// have no reservation left.
func (d deletion) stopped(t *testing.T, mac string, engine fleet.Engine) {
	t.Helper()
	eventually(t, "Mac "+mac+" stopped what is not wanted", func(ctx context.Context) error {
		m, err := d.Mac(ctx, mac)
		if err != nil {
			return err
		}
		if engine.Alive() {
			return fmt.Errorf("engine %d lives", engine.PID)
		}
		if r := m.Status.Reclaims; len(r) != 1 || r[0].Reason != v1alpha1.ReclaimUnassigned || r[0].FreedBytes == nil {
			return fmt.Errorf("reclaims %+v, want one, %s, with its bytes", r, v1alpha1.ReclaimUnassigned)
		}
		return nil
	})
	d.waitEmpty(t, mac)
}

// nothingOf wants none of what the operator made for a Mac.
func (d deletion) nothingOf(t *testing.T, mac string) {
	t.Helper()
	here := metav1.ObjectMeta{Namespace: fleet.Namespace, Name: v1alpha1.AgentObjectName(mac)}
	everywhere := metav1.ObjectMeta{Name: "metalfleet-" + here.Name}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: here}, &corev1.Secret{ObjectMeta: here}, &coordinationv1.Lease{ObjectMeta: here},
		&rbacv1.Role{ObjectMeta: here}, &rbacv1.RoleBinding{ObjectMeta: here},
		&rbacv1.ClusterRole{ObjectMeta: everywhere}, &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere},
	} {
		if err := d.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s is left (%v)", o, o.GetName(), err)
		}
	}
}

// credentials are those in a Mac's state folder, as a thief has them.
func (d deletion) credentials(t *testing.T, mac string) client.Client {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(d.Dir(), mac, "account.json"))
	must(t, err)
	var account struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(b, &account); err != nil || account.Token == "" {
		t.Fatalf("credentials of Mac %s hold no token: %v", mac, err)
	}
	config := rest.AnonymousClientConfig(d.Env.Config())
	config.BearerToken = account.Token
	c, err := client.New(config, client.Options{Scheme: d.Client.Scheme(), Mapper: d.Client.RESTMapper()})
	must(t, err)
	return c
}

// mayNothing wants credentials to be refused all that was the Mac's. The API server
// may remember a token for 10 s, and learns of roles by a watch.
func (d deletion) mayNothing(t *testing.T, c client.Client, mac string) {
	t.Helper()
	own := client.ObjectKey{Namespace: fleet.Namespace, Name: v1alpha1.AgentObjectName(mac)}
	version := client.RawPatch(types.MergePatchType, []byte(`{"status":{"agentVersion":"stolen"}}`))
	for what, try := range map[string]func(context.Context) error{
		"read its MacNode": func(ctx context.Context) error { return c.Get(ctx, client.ObjectKey{Name: mac}, &v1alpha1.MacNode{}) },
		"read its Secret":  func(ctx context.Context) error { return c.Get(ctx, own, &corev1.Secret{}) },
		"read its Lease":   func(ctx context.Context) error { return c.Get(ctx, own, &coordinationv1.Lease{}) },
		"write its status": func(ctx context.Context) error {
			return c.Status().Patch(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}, version, client.DryRunAll)
		},
	} {
		eventually(t, "the Mac's old credentials may not "+what, func(ctx context.Context) error {
			if err := try(ctx); !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
				return fmt.Errorf("got %w, want a refusal", err)
			}
			return nil
		})
	}
}
