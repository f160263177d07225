package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/front"
)

// kubelet is as much of one as a port-forward needs: it takes the streams that
// the API server opens and joins them with a port of this machine.
type kubelet struct {
	t        *testing.T
	mu       sync.Mutex
	errors   map[string]httpstream.Stream // by request; guarded by mu
	forwards int                          // guarded by mu
}

func startKubelet(t *testing.T) (*kubelet, int32) {
	t.Helper()
	k := &kubelet{t: t, errors: map[string]httpstream.Stream{}}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return k, int32(port)
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/portForward/") {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return // it has answered
	}
	streams := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			k.take(s)
		}
	}
}

// take pairs the stream for errors with the one for data of the same request.
func (k *kubelet) take(s httpstream.Stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := s.Headers().Get(corev1.PortForwardRequestIDHeader)
	if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
		k.errors[id] = s
		return
	}
	k.forwards++
	go join(s, k.errors[id], s.Headers().Get(corev1.PortHeader))
}

func join(data, errs httpstream.Stream, port string) {
	defer errs.Close()
	defer data.Close()
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Fprint(errs, err)
		return
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(data, conn)
}

func (k *kubelet) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forwards
}

// gatewayPod creates the chart's Service, a Pod that it selects on a Node of this
// machine, and the objects that a Pod needs; requests go to a local port.
func (p *person) gatewayPod(kubeletPort int32, port string) {
	p.t.Helper()
	ns := p.namespace(defaultSystem)
	ctx := context.Background()
	p.must(client.IgnoreAlreadyExists(p.c.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}})))
	p.make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
	}})
	selector := map[string]string{"app.kubernetes.io/component": "gateway"}
	p.make(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: front.Service},
		Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}})
	number, err := strconv.ParseInt(port, 10, 32)
	p.must(err)
	for name, ready := range map[string]corev1.ConditionStatus{"gateway-a": corev1.ConditionFalse, "gateway-b": corev1.ConditionTrue} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: selector}, Spec: corev1.PodSpec{
			NodeName: "node-1", AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "gateway", Image: "gateway", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(number)}, {Name: front.PortLogs, ContainerPort: int32(number)}}}},
		}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		p.make(pod)
	}
}
