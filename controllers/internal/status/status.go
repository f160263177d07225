// Package status is how reconcilers write: conditions that keep their
// transition times, and server-side apply of only the fields a reconciler owns.
//
// A spec is never forced, because users write it as well: a conflict is an ordinary
// error that the caller returns. A status is forced: an agent that applies the same
// condition would own it too, and could keep it as it is.
// It decides nothing; what is written is the caller's. Callers compare before
// they write, so that an unchanged object is never written.
//
// Start reading at Merge and Apply.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// maxMessage is the bound of a condition's message in the schema.
const maxMessage = 32768

// Condition is the writer's part of a condition.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// True, False and Unknown make conditions.
func True(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionTrue, reason, message}
}

// False makes a condition that does not hold.
func False(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionFalse, reason, message}
}

// Unknown makes a condition that cannot be told yet.
func Unknown(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionUnknown, reason, message}
}

// Merge stamps the wanted conditions: one whose status is as before keeps the
// time of its last transition. Conditions of previous that are not wanted are
// not in the result.
func Merge(previous []metav1.Condition, generation int64, now time.Time, wanted ...Condition) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(wanted))
	for _, w := range wanted {
		c := metav1.Condition{
			Type: w.Type, Status: w.Status, Reason: w.Reason, Message: truncate(w.Message),
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		}
		if p := meta.FindStatusCondition(previous, w.Type); p != nil && p.Status == c.Status {
			c.LastTransitionTime = p.LastTransitionTime
		}
		out = append(out, c)
	}
	return out
}

func truncate(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return s[:maxMessage-3] + "..."
}

// Pick returns the conditions of the given types, in their order.
func Pick(conditions []metav1.Condition, kinds ...string) []metav1.Condition {
	var out []metav1.Condition
	for _, k := range kinds {
		if c := meta.FindStatusCondition(conditions, k); c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// Equal compares two values as they would be written: an absent list and an
// empty one are the same.
func Equal(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && slices.Equal(x, y)
}

// Document is what one field manager says of one object.
type Document struct {
	// Object is the one that is meant; its kind, name, namespace and UID are used.
	Object client.Object
	// Manager is the field manager.
	Manager string
	// Locked makes the write fail when the object changed since it was read.
	Locked bool
	// Spec and Status are the owned fields; one of them is nil.
	Spec, Status any
}

// Apply sends a document by server-side apply, to the status subresource if it
// speaks of the status. Document.Object receives the answer.
func Apply(ctx context.Context, c client.Client, d Document) error {
	patch, err := d.patch(c.Scheme())
	if err != nil {
		return err
	}
	if d.Status != nil {
		err = c.Status().Patch(ctx, d.Object, patch, client.FieldOwner(d.Manager), client.ForceOwnership)
	} else {
		err = c.Patch(ctx, d.Object, patch, client.FieldOwner(d.Manager))
	}
	if err != nil {
		return fmt.Errorf("apply %T %s: %w", d.Object, client.ObjectKeyFromObject(d.Object), err)
	}
	return nil
}

func (d Document) patch(scheme *runtime.Scheme) (client.Patch, error) {
	gvk, err := apiutil.GVKForObject(d.Object, scheme)
	if err != nil {
		return nil, fmt.Errorf("kind of %T: %w", d.Object, err)
	}
	metadata := map[string]any{"name": d.Object.GetName(), "uid": d.Object.GetUID()}
	if ns := d.Object.GetNamespace(); ns != "" {
		metadata["namespace"] = ns
	}
	if d.Locked {
		metadata["resourceVersion"] = d.Object.GetResourceVersion()
	}
	doc := map[string]any{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind, "metadata": metadata}
	if d.Status != nil {
		doc["status"] = d.Status
	} else {
		doc["spec"] = d.Spec
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", gvk.Kind, d.Object.GetName(), err)
	}
	return client.RawPatch(types.ApplyPatchType, b), nil
}
