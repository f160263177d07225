package fleet

import (
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// PriorityOf resolves spec.priorityClassName; class is the PriorityClass of that name, nil
// if there is none. Without a name the priority is 0: the cluster's default class is meant
// for Pods.
func PriorityOf(spec *v1alpha1.ModelDeploymentSpec, class *schedulingv1.PriorityClass) (v1alpha1.Priority, *Refusal) {
	switch {
	case spec.PriorityClassName == "":
		return v1alpha1.Priority{}, nil
	case class == nil:
		return v1alpha1.Priority{}, &Refusal{v1alpha1.ReasonPriorityClassNotFound,
			"PriorityClass " + spec.PriorityClassName + " does not exist; `kubectl get priorityclass` lists the existing ones"}
	}
	p := v1alpha1.Priority{ClassName: class.Name, Value: class.Value}
	if ptr.Deref(class.PreemptionPolicy, corev1.PreemptLowerPriority) == corev1.PreemptNever {
		p.PreemptionPolicy = corev1.PreemptNever
	}
	return p, nil
}
