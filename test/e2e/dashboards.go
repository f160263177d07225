package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// Ports of an agent's figures: on the Mac's loopback, and where what stands in
// front of it listens.
const (
	agentFigures = "127.0.0.1:9443"
	figuresPort  = ":9100"
)

// drawWithin bounds the end of a recording: its queries and pictures.
const drawWithin = 2 * time.Minute

// observer is the Prometheus beside the story (test/prometheus).
type observer struct {
	cmd   *exec.Cmd
	notes io.WriteCloser
	ended bool
}

// group of targets, as Prometheus' file_sd has them.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// monitoring is what the chart gives a Prometheus, as Helm renders it.
type monitoring struct {
	monitors   []serviceMonitor
	rules      []byte
	dashboards map[string]string // by file
}

type serviceMonitor struct {
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Endpoints []struct {
			Port string `json:"port"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// observed has a step noted in the pictures.
func (s *story) observed(name string) error {
	if s.observer == nil || s.observer.ended {
		return nil
	}
	_, err := fmt.Fprintln(s.observer.notes, name)
	return err
}

// observe begins to scrape what the chart's ServiceMonitors name, and the Macs.
func (s *story) observe(ctx context.Context) error {
	if s.o.docs == "" {
		return nil
	}
	dir := filepath.Join(s.dir, "prometheus")
	if err := os.MkdirAll(filepath.Join(dir, "dashboards"), 0o755); err != nil {
		return err
	}
	m, err := s.monitoring(ctx)
	if err != nil {
		return err
	}
	groups, err := s.targets(ctx, m)
	if err != nil {
		return err
	}
	targets, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	files := map[string][]byte{"targets.json": targets, "rules.yaml": m.rules}
	for name, text := range m.dashboards {
		files[filepath.Join("dashboards", name)] = []byte(text)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return s.startObserver(dir)
}

// startObserver returns when every target has answered.
func (s *story) startObserver(dir string) error {
	o := &observer{cmd: exec.Command(filepath.Join(s.o.root, "bin", "prometheus"),
		"-targets="+filepath.Join(dir, "targets.json"), "-rules="+filepath.Join(dir, "rules.yaml"), "-dashboards="+filepath.Join(dir, "dashboards"),
		"-expect="+filepath.Join(s.o.root, "hack", "e2e", "dashboards.yaml"), "-data="+filepath.Join(dir, "data"), "-out="+s.drawn())}
	o.cmd.Stderr = os.Stderr
	var err error
	if o.notes, err = o.cmd.StdinPipe(); err != nil {
		return err
	}
	said, err := o.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := o.cmd.Start(); err != nil {
		return fmt.Errorf("%w; make docs-install builds it", err)
	}
	s.observer = o
	line, err := bufio.NewReader(said).ReadString('\n') // it gives up by itself
	if err != nil || line != "recording\n" {
		return errors.Join(fmt.Errorf("the Prometheus beside it says %q: %w", line, err), o.end())
	}
	return nil
}

// end has it judge and draw what it recorded.
func (o *observer) end() error {
	o.ended = true
	err := o.notes.Close()
	slow := time.AfterFunc(drawWithin, func() { _ = o.cmd.Process.Kill() })
	defer slow.Stop()
	return errors.Join(err, o.cmd.Wait())
}

// stop ends it without a verdict, after a story that failed.
func (o *observer) stop() {
	if o == nil || o.ended {
		return
	}
	o.ended = true
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait() // it was killed
}

// draw ends the recording.
func (s *story) draw(context.Context) error {
	if s.observer == nil {
		return nil
	}
	if err := s.observer.end(); err != nil {
		return fmt.Errorf("dashboards: %w", err)
	}
	return nil
}

// drawn is where pictures wait until the whole story has passed.
func (s *story) drawn() string { return filepath.Join(s.dir, "prometheus", "docs") }

// publish puts the pictures into docs.
func (s *story) publish() error {
	if err := os.RemoveAll(filepath.Join(s.o.docs, "dashboards")); err != nil {
		return err
	}
	page := filepath.Join(s.o.docs, "dashboards.md")
	if err := os.Remove(page); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.CopyFS(s.o.docs, os.DirFS(s.drawn()))
}

// monitoring renders the chart with all of it turned on: the kinds of the
// Prometheus operator are not in this cluster.
func (s *story) monitoring(ctx context.Context) (*monitoring, error) {
	text, err := s.helm(ctx, "template", "metalfleet", filepath.Join(s.o.root, "charts", "metalfleet"), "--show-only", "templates/monitoring.yaml",
		"--set", "monitoring.serviceMonitors.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true")
	if err != nil {
		return nil, err
	}
	return parseMonitoring(text)
}

// parseMonitoring takes the documents apart. A kind that nobody looks at is
// refused: it would be monitoring that nobody has seen at work.
func parseMonitoring(text string) (*monitoring, error) {
	m := &monitoring{dashboards: map[string]string{}}
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		var o struct {
			Kind string            `json:"kind"`
			Spec json.RawMessage   `json:"spec"`
			Data map[string]string `json:"data"`
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, fmt.Errorf("monitoring of the chart: %w", err)
		}
		switch o.Kind {
		case "":
		case "ServiceMonitor":
			var sm serviceMonitor
			if err := yaml.Unmarshal([]byte(document), &sm); err != nil {
				return nil, fmt.Errorf("ServiceMonitor of the chart: %w", err)
			}
			m.monitors = append(m.monitors, sm)
		case "PrometheusRule":
			m.rules = bytes.Clone(o.Spec)
		case "ConfigMap":
			for name, text := range o.Data {
				m.dashboards[name] = text
			}
		default:
			return nil, fmt.Errorf("monitoring of the chart has a %s, which nothing here looks at", o.Kind)
		}
	}
	if len(m.monitors) == 0 || m.rules == nil || len(m.dashboards) == 0 {
		return nil, fmt.Errorf("monitoring of the chart: %d ServiceMonitors, %d bytes of rules, %d dashboards", len(m.monitors), len(m.rules), len(m.dashboards))
	}
	return m, nil
}

// targets are the Pods behind the Services that ServiceMonitors select, labelled
// as the Prometheus operator would, and the Macs, each through a relay.
func (s *story) targets(ctx context.Context, m *monitoring) ([]group, error) {
	var out []group
	for _, sm := range m.monitors {
		var services corev1.ServiceList
		if err := s.list(ctx, &services, "services", "-l", selector(sm.Spec.Selector.MatchLabels)); err != nil {
			return nil, err
		}
		for _, e := range sm.Spec.Endpoints {
			found, err := s.endpoints(ctx, services.Items, e.Port)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
	}
	for _, mac := range s.macs {
		address := mac.net.Address + figuresPort
		relay, err := mac.net.Relay(address, agentFigures)
		if err != nil {
			return nil, err
		}
		s.relays = append(s.relays, relay)
		out = append(out, group{[]string{address}, map[string]string{"job": "metalfleet-agent", "instance": mac.net.Name}})
	}
	return out, nil
}

// endpoints of a port with that name. A ServiceMonitor that finds none is an
// error: it would scrape nothing, in silence.
func (s *story) endpoints(ctx context.Context, services []corev1.Service, port string) ([]group, error) {
	var out []group
	for _, svc := range services {
		if !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port }) {
			continue
		}
		var slicesOf discoveryv1.EndpointSliceList
		if err := s.list(ctx, &slicesOf, "endpointslices", "-l", discoveryv1.LabelServiceName+"="+svc.Name); err != nil {
			return nil, err
		}
		for _, es := range slicesOf.Items {
			out = append(out, groupsOf(svc.Name, port, es)...)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("a ServiceMonitor asks for the port %q, and none of %d Services has a Pod behind it", port, len(services))
	}
	return out, nil
}

func groupsOf(service, port string, es discoveryv1.EndpointSlice) []group {
	var out []group
	for _, p := range es.Ports {
		if p.Name == nil || *p.Name != port || p.Port == nil {
			continue
		}
		for _, e := range es.Endpoints {
			labels := map[string]string{"job": service, "service": service, "namespace": es.Namespace, "endpoint": port}
			if e.TargetRef != nil {
				labels["pod"] = e.TargetRef.Name
			}
			out = append(out, group{[]string{net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port)))}, labels})
		}
	}
	return out
}

// list reads objects of the release's namespace.
func (s *story) list(ctx context.Context, into any, args ...string) error {
	text, err := s.kubectl(ctx, append([]string{"-n", namespace, "get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

func selector(labels map[string]string) string {
	var out []string
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
