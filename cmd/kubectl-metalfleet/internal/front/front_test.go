package front

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// pod of the gateway.
func pod(name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name, Labels: map[string]string{"of": "gateway"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// The way itself is tried in package cli, through a real API server.
func TestOnlyAReadyPod(t *testing.T) {
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: Service},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"of": "gateway"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}}}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(service, pod("a", corev1.ConditionFalse), pod("b", corev1.ConditionTrue), pod("c", corev1.ConditionTrue)).Build()
	p, port, err := findPod(context.Background(), c, "system", "")
	if err != nil || p.Name != "b" || port != 8080 {
		t.Errorf("got %v, port %d, %v", p, port, err)
	}
	if _, _, err := findPod(context.Background(), c, "system", PortLogs); err == nil || !strings.Contains(err.Error(), "no port called logs") {
		t.Errorf("a gateway that serves no logs: %v", err)
	}
	c = fake.NewClientBuilder().WithScheme(s).WithObjects(service, pod("a", corev1.ConditionFalse)).Build()
	if _, _, err := findPod(context.Background(), c, "system", ""); err == nil || !strings.Contains(err.Error(), "no gateway Pod is ready") {
		t.Errorf("no Pod is ready: %v", err)
	}
}

func TestTargetPorts(t *testing.T) {
	for name, tc := range map[string]struct {
		port corev1.ServicePort
		want int32
		says string
	}{
		"by its name":           {port: corev1.ServicePort{Port: 80, TargetPort: intstr.FromString("http")}, want: 8080, says: ""},
		"by its number":         {port: corev1.ServicePort{Port: 80, TargetPort: intstr.FromInt32(9090)}, want: 9090, says: ""},
		"as the Service":        {port: corev1.ServicePort{Port: 80}, want: 80, says: ""},
		"one that is not there": {port: corev1.ServicePort{Port: 80, TargetPort: intstr.FromString("grpc")}, want: 0, says: "has no port called grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := targetPort(tc.port, pod("a", corev1.ConditionTrue))
			if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestBaseURLs(t *testing.T) {
	for base, want := range map[string]string{
		"http://h:1": "http://h:1", "https://h/v1": "https://h", "https://h/proxy/v1/": "https://h/proxy", "h:1": "", "ftp://h": "", "": "",
	} {
		w, err := Direct(base)
		if (err == nil) != (want != "") || err == nil && w.base.String() != want {
			t.Errorf("%q: got %v, %v, want %q", base, w, err, want)
		}
	}
}
