package controllers_test

import (
	"fmt"
	"io"
	"log"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

type runtimeObject = runtime.Object

// brief formats an object on one line, for the log of a failed test.
func brief(o runtime.Object) string {
	switch x := o.(type) {
	case *v1alpha1.ModelDeployment:
		return fmt.Sprintf("%s/%s deleting=%v ready=%s freed=%d accounted=%v %s", x.Namespace, x.Name, x.DeletionTimestamp != nil, x.Status.Summary.Ready,
			x.Status.FreedBytesTotal, x.Status.Accounted, told(x.Status.Conditions))
	case *v1alpha1.ModelReplica:
		return fmt.Sprintf("%s/%s on %q epoch=%d deleting=%v desired=%s finalizers=%v %s", x.Namespace, x.Name, x.Spec.NodeName, x.Spec.Epoch,
			x.DeletionTimestamp != nil, x.Spec.Desired, x.Finalizers, told(x.Status.Conditions))
	case *v1alpha1.MacNode:
		var b strings.Builder
		for _, a := range x.Status.Assignments {
			fmt.Fprintf(&b, " [%s %s %s]", a.ReplicaUID, a.Progress.Stage, told(a.Conditions))
		}
		return fmt.Sprintf("%s deleting=%v finalizers=%v inspections=%v %s%s", x.Name, x.DeletionTimestamp != nil, x.Finalizers, x.Status.Inspections, told(x.Status.Conditions), b.String())
	case *v1alpha1.MacAssignment:
		return fmt.Sprintf("%s assignments=%d inspections=%d confirmed=%v", x.Name, len(x.Spec.Assignments), len(x.Spec.Inspections), x.Confirmed())
	}
	return ""
}

func told(conditions []metav1.Condition) string {
	var b strings.Builder
	for _, c := range conditions {
		fmt.Fprintf(&b, " %s=%s/%s(%s)", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func contains(s, part string) bool { return strings.Contains(s, part) }

func quantity(s string) *resource.Quantity { q := resource.MustParse(s); return &q }

// quiet returns a log for a test server with expected handshake errors.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
