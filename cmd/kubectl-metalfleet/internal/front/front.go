// Package front is the plugin's way to the gateway and the client on it.
//
// It owns the port-forward to a gateway Pod, and one call: a streamed chat. A
// port-forward and not the API server's proxy of Services, because that takes
// the Authorization header for itself, and the API key with it. It refuses to
// keep a key anywhere but in the request.
//
// Start reading at Forward and Way.Chat.
package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Service is the gateway's, as the chart calls it.
const Service = "metalfleet-gateway"

// Way leads to a gateway.
type Way struct {
	base  *url.URL
	http  *http.Client
	close func()
}

// Close gives the way back.
func (w *Way) Close() {
	w.http.CloseIdleConnections()
	w.close()
}

// Direct is the way to a gateway that is reachable by itself.
func Direct(base string) (*Way, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--url is %q: want http://HOST:PORT or https://HOST, without /v1", base)
	}
	// A base may be written with the version, as other clients want it.
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	return &Way{base: u, http: newClient(), close: func() {}}, nil
}

// newClient has no timeout: an answer takes as long as it takes, and its caller
// has a context.
func newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 256
	return &http.Client{Transport: t}
}

// Forward opens a port-forward to a ready Pod of the gateway, through the API
// server, as kubectl port-forward does. port is the name of a port of the Pod; empty
// means that of the Service.
func Forward(ctx context.Context, config *rest.Config, c client.Reader, namespace, port string) (*Way, error) {
	pod, number, err := findPod(ctx, c, namespace, port)
	if err != nil {
		return nil, err
	}
	dialer, err := dial(config, pod)
	if err != nil {
		return nil, fmt.Errorf("port-forward to %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ctx, stop := context.WithCancel(ctx)
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{"127.0.0.1"},
		[]string{fmt.Sprintf("0:%d", number)}, ready, io.Discard, io.Discard)
	if err != nil {
		stop()
		return nil, fmt.Errorf("port-forward to %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		stop()
		return nil, fmt.Errorf("port-forward to %s/%s: %w; you need permission to create pods/portforward in that namespace, "+
			"or set the URL of the gateway with --url", pod.Namespace, pod.Name, err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		stop()
		return nil, fmt.Errorf("port-forward to %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	local := newClient()
	local.Transport.(*http.Transport).Proxy = nil // it ends on this machine
	return &Way{base: &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[0].Local)}, http: local,
		close: func() { stop(); <-ended }}, nil
}

// dial tries a WebSocket first, then SPDY, which older API servers speak.
func dial(config *rest.Config, pod *corev1.Pod) (httpstream.Dialer, error) {
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath("api", "v1", "namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	newer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(newer, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// findPod picks a ready Pod behind the gateway's Service, the first by name,
// and the number of a port.
func findPod(ctx context.Context, c client.Reader, namespace, port string) (*corev1.Pod, int32, error) {
	var service corev1.Service
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: Service}, &service)
	if apierrors.IsNotFound(err) {
		return nil, 0, fmt.Errorf("there is no Service %s in namespace %q: "+
			"set --system-namespace to the namespace of metalfleet, or --url to the URL of the gateway", Service, namespace)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the gateway's Service: %w", err)
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(service.Spec.Selector)); err != nil {
		return nil, 0, fmt.Errorf("list the gateway's Pods: %w", err)
	}
	ready := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !answers(&p) })
	slices.SortFunc(ready, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	if len(ready) == 0 || len(service.Spec.Ports) == 0 {
		return nil, 0, fmt.Errorf("no gateway Pod is ready in namespace %q; check with `kubectl get pods -n %s`", namespace, namespace)
	}
	at := service.Spec.Ports[0]
	if port != "" {
		at.TargetPort = intstr.FromString(port)
	}
	number, err := targetPort(at, &ready[0])
	return &ready[0], number, err
}

func answers(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// targetPort resolves the Service's port in a Pod.
func targetPort(port corev1.ServicePort, pod *corev1.Pod) (int32, error) {
	if port.TargetPort.Type == intstr.Int {
		return cmp.Or(port.TargetPort.IntVal, port.Port), nil
	}
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == port.TargetPort.StrVal {
				return p.ContainerPort, nil
			}
		}
	}
	return 0, errors.New("Pod " + pod.Name + " has no port called " + port.TargetPort.StrVal)
}
