package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Model is a deployment of one replica, with the fields that tests change.
type Model struct {
	// Namespace of the deployment; empty: default.
	Namespace string
	// Name of the deployment, and File in the model root.
	Name, File string
	// Mac is the only one that may hold it, by the label LabelRoom; empty: any.
	Mac string
	// Served is a further name that clients may use; empty: the deployment's.
	Served string
	// OnDemand models are loaded by their first request and may be evicted.
	OnDemand bool
	// IdleSeconds until an OnDemand one is unloaded; 0: never.
	IdleSeconds int32
	// MaxTokens, MaxConcurrentRequests and KVCacheTokens of its context; 0 means
	// 256, 2 and what the operator makes of them.
	MaxTokens, MaxConcurrentRequests, KVCacheTokens int64
	// DrainSeconds that running requests may take to end.
	DrainSeconds int32
	// Chips of the Macs that may hold it; none means any.
	Chips []string
	// DiskLimit is prefixCache.diskLimit; empty: none.
	DiskLimit string
}

// Deployment is the object to create.
func (m Model) Deployment() *v1alpha1.ModelDeployment {
	md := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(m.Namespace, "default"), Name: m.Name},
		Spec: v1alpha1.ModelDeploymentSpec{
			Model:     v1alpha1.ModelSource{Source: "file://" + m.File},
			Context:   v1alpha1.ContextSpec{MaxTokens: 256, MaxConcurrentRequests: 2, KVCacheTokens: m.KVCacheTokens},
			Placement: v1alpha1.PlacementSpec{Chips: m.Chips},
			Rollout:   v1alpha1.RolloutSpec{DrainSeconds: &m.DrainSeconds},
		},
	}
	if m.Mac != "" {
		md.Spec.Placement.NodeSelector = map[string]string{LabelRoom: m.Mac}
	}
	if m.Served != "" {
		md.Spec.ServedNames = []string{m.Served}
	}
	if m.MaxTokens > 0 {
		md.Spec.Context.MaxTokens = m.MaxTokens
	}
	if m.MaxConcurrentRequests > 0 {
		md.Spec.Context.MaxConcurrentRequests = m.MaxConcurrentRequests
	}
	if m.DiskLimit != "" {
		limit := resource.MustParse(m.DiskLimit)
		md.Spec.PrefixCache.DiskLimit = &limit
	}
	if m.OnDemand {
		md.Spec.Residency = v1alpha1.ResidencySpec{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: &m.IdleSeconds}
	}
	return md
}

// Deploy creates a model and waits until it is ready: loaded, or loadable by a
// request where it is OnDemand.
func (f *Fleet) Deploy(ctx context.Context, m Model) error {
	if err := f.Client.Create(ctx, m.Deployment()); err != nil {
		return fmt.Errorf("create %s: %w", m.Name, err)
	}
	return f.WaitDeployed(ctx, m.Name)
}

// WaitDeployed waits until a model is ready.
func (f *Fleet) WaitDeployed(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	return Poll(ctx, 20*time.Millisecond, name+" is ready", func(ctx context.Context) error {
		md := &v1alpha1.ModelDeployment{}
		if err := f.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, md); err != nil {
			return err
		}
		if md.Status.ReadyReplicas < 1 || !meta.IsStatusConditionTrue(md.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("conditions %v", md.Status.Conditions)
		}
		return nil
	})
}

// Undeploy deletes a model and waits until all of its memory is released.
func (f *Fleet) Undeploy(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*Ready, fmt.Errorf("not within %s", 2*Ready))
	defer cancel()
	md := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := client.IgnoreNotFound(f.Client.Delete(ctx, md)); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return Poll(ctx, 20*time.Millisecond, name+" is gone", func(ctx context.Context) error {
		err := f.Client.Get(ctx, client.ObjectKeyFromObject(md), md)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("finalizers %v", md.Finalizers)
		}
		return err
	})
}

// SetCeiling sets the memory ceiling of a Mac; 0 removes it.
func (f *Fleet) SetCeiling(ctx context.Context, mac string, bytes int64) error {
	var ceiling any
	if bytes > 0 {
		ceiling = resource.NewQuantity(bytes, resource.BinarySI).String()
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"memory": map[string]any{"ceiling": ceiling}}})
	if err != nil {
		return fmt.Errorf("ceiling of %s: %w", mac, err)
	}
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}
	if err := f.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("ceiling of %s: %w", mac, err)
	}
	return nil
}

// Mac reads a MacNode.
func (f *Fleet) Mac(ctx context.Context, name string) (*v1alpha1.MacNode, error) {
	node := &v1alpha1.MacNode{}
	if err := f.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, fmt.Errorf("MacNode %s: %w", name, err)
	}
	return node, nil
}

// WaitMac waits until ask returns nil for a MacNode.
func (f *Fleet) WaitMac(ctx context.Context, name, what string, limit time.Duration, ask func(*v1alpha1.MacNode) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	return Poll(ctx, 20*time.Millisecond, what, func(ctx context.Context) error {
		node, err := f.Mac(ctx, name)
		if err != nil {
			return err
		}
		return ask(node)
	})
}

// Resident is a model with a living engine.
type Resident struct {
	Replica v1alpha1.ModelReplica
	Report  v1alpha1.AssignmentStatus
	Engine  Engine
}

// errNotResident is the error of a model without a living engine.
var errNotResident = errors.New("model has no engine")

// Resident finds the engine of a model with one replica.
func (f *Fleet) Resident(ctx context.Context, model string) (Resident, error) {
	replica, err := f.Replica(ctx, model)
	if err != nil {
		return Resident{}, err
	}
	return f.ResidentOf(ctx, replica)
}

// ResidentOf finds the engine of a replica by the process id that its Mac reports.
func (f *Fleet) ResidentOf(ctx context.Context, replica v1alpha1.ModelReplica) (Resident, error) {
	r := Resident{Replica: replica}
	node, err := f.Mac(ctx, replica.Spec.NodeName)
	if err != nil {
		return r, err
	}
	i := slices.IndexFunc(node.Status.Assignments, func(a v1alpha1.AssignmentStatus) bool { return a.ReplicaUID == string(replica.UID) })
	if i < 0 || node.Status.Assignments[i].PID == 0 {
		return r, fmt.Errorf("%s: %w: Mac %s reports none", replica.Name, errNotResident, node.Name)
	}
	r.Report = node.Status.Assignments[i]
	engines, err := f.Agent(node.Name).Engines()
	if err != nil {
		return r, err
	}
	for _, e := range engines {
		if int64(e.PID) == r.Report.PID {
			r.Engine = e
			return r, nil
		}
	}
	return r, fmt.Errorf("%s: %w: no process %d", replica.Name, errNotResident, r.Report.PID)
}

// Replica is the one replica of a model.
func (f *Fleet) Replica(ctx context.Context, model string) (v1alpha1.ModelReplica, error) {
	var list v1alpha1.ModelReplicaList
	if err := f.Client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{v1alpha1.LabelDeployment: model}); err != nil {
		return v1alpha1.ModelReplica{}, fmt.Errorf("replicas of %s: %w", model, err)
	}
	if len(list.Items) != 1 {
		return v1alpha1.ModelReplica{}, fmt.Errorf("%d replicas of %s, want 1", len(list.Items), model)
	}
	return list.Items[0], nil
}

// Rouse asks a model for one token until it is answered, as a client that tries
// again after a 503, and returns its engine.
func (f *Fleet) Rouse(ctx context.Context, model string, limit time.Duration) (Resident, error) {
	// The shortest prompt: a large model on a slow back end takes seconds for a token.
	body, err := json.Marshal(map[string]any{"model": "default/" + model, "prompt": "a", "max_tokens": 1, "temperature": 0})
	if err != nil {
		return Resident{}, fmt.Errorf("question: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	err = Poll(ctx, 250*time.Millisecond, model+" answers", func(ctx context.Context) error {
		_, err := Post(ctx, f.URL+"/v1/completions", body, Question{})
		var refusal *openai.Error
		if errors.As(err, &refusal) && refusal.Status == http.StatusServiceUnavailable {
			return err
		}
		if err != nil {
			cancel() // waiting does not help
		}
		return err
	})
	if err != nil {
		return Resident{}, err
	}
	var r Resident
	err = Poll(ctx, 20*time.Millisecond, "its Mac reports the engine of "+model, func(ctx context.Context) (err error) {
		r, err = f.Resident(ctx, model)
		return err
	})
	return r, err
}

// CheckLedger wants a Mac's reservations to be exactly those of its residents:
// each assignment with an engine has a reservation and a living process, no other
// engine lives, and no reclaim is reported twice.
func (f *Fleet) CheckLedger(ctx context.Context, mac string) error {
	node, err := f.Mac(ctx, mac)
	if err != nil {
		return err
	}
	engines, err := f.Agent(mac).Engines()
	if err != nil {
		return err
	}
	return checkLedger(node, engines)
}

func checkLedger(node *v1alpha1.MacNode, engines []Engine) error {
	var errs []error
	var reserved int64
	pids := map[int64]bool{}
	for _, e := range engines {
		pids[int64(e.PID)] = true
	}
	for _, a := range node.Status.Assignments {
		reserved += a.Memory.ReservedBytes
		switch {
		case a.PID != 0 && !pids[a.PID]:
			errs = append(errs, fmt.Errorf("replica %s has the process %d, which does not live", a.ReplicaUID, a.PID))
		case a.PID != 0 && a.Memory.ReservedBytes == 0:
			errs = append(errs, fmt.Errorf("replica %s has an engine and no reservation", a.ReplicaUID))
		}
		delete(pids, a.PID)
	}
	if len(pids) > 0 {
		errs = append(errs, fmt.Errorf("%d engines live that no assignment reports: %v", len(pids), engines))
	}
	if m := node.Status.Memory; m.ReservedBytes != reserved {
		errs = append(errs, fmt.Errorf("%d bytes are reserved, the assignments add up to %d", m.ReservedBytes, reserved))
	}
	seen := map[string]bool{}
	for _, r := range node.Status.Reclaims {
		if seen[r.ID] {
			errs = append(errs, fmt.Errorf("reclaim %s is reported twice", r.ID))
		}
		seen[r.ID] = true
	}
	return errors.Join(errs...)
}

// CheckEmpty wants a Mac to have no engine, no reservation and no memory in use.
func (f *Fleet) CheckEmpty(ctx context.Context, mac string) error {
	if err := f.CheckLedger(ctx, mac); err != nil {
		return err
	}
	node, err := f.Mac(ctx, mac)
	if err != nil {
		return err
	}
	engines, err := f.Agent(mac).Engines()
	if err != nil {
		return err
	}
	if m := node.Status.Memory; len(engines) > 0 || m.ReservedBytes != 0 || m.FootprintBytes != 0 {
		return fmt.Errorf("Mac %s is not empty: %d engines, %d bytes reserved, %d bytes in use", mac, len(engines), m.ReservedBytes, m.FootprintBytes)
	}
	return nil
}
