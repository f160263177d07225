package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/front"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const logsLong = `Prints the Events of a model (its deployment, its replicas and their Macs), or of a
Mac and its replicas, in chronological order; -f follows new Events. The API
server keeps Events for an hour by default. -o json prints one JSON object per
line.

--of engines prints the end of the log of each engine instead, and --of agents
that of the agent of each Mac. They come through a port-forward to a Pod of the
gateway, with your own permissions (pods/portforward); --url reads them from the
address in the gateway's flag --logs. Logs have no prompts and no answers.`

// What logs prints.
const (
	ofEvents  = "events"
	ofEngines = "engines"
	ofAgents  = "agents"
)

// logsCommand prints the Events of a replica, a Mac or a model, or logs from its Macs.
type logsCommand struct{ *app }

// logsFlags are the flags of logs.
type logsFlags struct {
	follow  bool
	of, url string
	bytes   int
}

func (f *logsFlags) check() error {
	switch {
	case f.of != ofEvents && f.of != ofEngines && f.of != ofAgents:
		return usagef("--of is %q: want %s, %s or %s", f.of, ofEvents, ofEngines, ofAgents)
	case f.of != ofEvents && f.follow:
		return usagef("--follow is for Events; run the command again for newer lines of a log")
	case f.bytes < 1 || f.bytes > agentapi.MaxLogBytes:
		return usagef("--bytes is %d: want 1 to %d", f.bytes, agentapi.MaxLogBytes)
	}
	return nil
}

func (a logsCommand) logs() *cobra.Command {
	var f logsFlags
	c := &cobra.Command{
		Use: "logs MODEL|MAC", Short: "Print the Events of a model or a Mac, or the logs of its engines and agents", Long: logsLong, Args: exactly(1, "one MODEL or MAC"),
		Example: "  kubectl metalfleet logs qwen3-8b -f\n  kubectl metalfleet logs qwen3-8b --of engines\n  kubectl metalfleet logs mac-mini-2 --of agents",
		ValidArgsFunction: a.complete(func(ctx context.Context, c *cluster) ([]string, error) {
			macs, err := macNames(ctx, c)
			models, err2 := modelNames(ctx, c)
			return append(macs, models...), errors.Join(err, err2)
		}),
	}
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "follow new Events until Ctrl-C")
	c.Flags().StringVar(&f.of, "of", ofEvents, "what to print: events, engines or agents")
	c.Flags().IntVar(&f.bytes, "bytes", 64<<10, "maximum length of the end of each log")
	c.Flags().StringVar(&f.url, "url", "", "URL of a gateway's address for logs; default: use a port-forward")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		cl, err := a.connect()
		if err != nil {
			return err
		}
		s, err := a.subject(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		if f.of == ofEvents {
			return a.printEvents(cmd.Context(), cl, s, f.follow)
		}
		return a.printLogs(cmd.Context(), cl, s, f)
	}
	a.outputFlag(c)
	return c
}

// macLog is a log of an agent or an engine.
type macLog struct{ title, mac, engine string }

// printLogs prints the end of each log. One that cannot be read is an error after the others.
func (a logsCommand) printLogs(ctx context.Context, c *cluster, s *subject, f logsFlags) error {
	all := s.engines
	if f.of == ofAgents {
		all = nil
		for _, mac := range slices.Sorted(maps.Keys(s.macs)) {
			all = append(all, macLog{title: "agent of Mac " + mac, mac: mac})
		}
	}
	if len(all) == 0 {
		fmt.Fprintln(a.Err, "No replica is bound to a Mac.")
		return nil
	}
	way, err := a.toLogs(ctx, c, f.url)
	if err != nil {
		return err
	}
	defer way.Close()
	var failed []error
	for _, l := range all {
		text, err := way.Log(ctx, l.mac, l.engine, f.bytes)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", l.title, err))
			continue
		}
		if len(all) > 1 {
			fmt.Fprintf(a.Out, "==> %s <==\n", l.title)
		}
		if _, err := fmt.Fprint(a.Out, picture.Lines(text)); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// toLogs returns the way to the address of a gateway that serves logs.
func (a logsCommand) toLogs(ctx context.Context, c *cluster, url string) (*front.Way, error) {
	if url != "" {
		return front.Direct(url)
	}
	way, err := front.Forward(ctx, c.config, c, a.flags.system, front.PortLogs)
	if err != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return nil, a.apiError("find the gateway", err)
	}
	return way, err
}

// subject is what Events are about.
type subject struct {
	namespaces []string
	// deployment by namespace and name; empty for a Mac.
	deployment client.ObjectKey
	macs       map[string]bool
	// replicas that are there, by namespace/name.
	replicas map[string]bool
	engines  []macLog
}

// subject finds a model, else a Mac, of that name.
func (a logsCommand) subject(ctx context.Context, c *cluster, named string) (*subject, error) {
	d, modelErr := a.deployment(ctx, c, named)
	s := &subject{macs: map[string]bool{}, replicas: map[string]bool{}, namespaces: []string{metav1.NamespaceDefault}}
	switch {
	case d != nil:
		s.deployment = client.ObjectKeyFromObject(d)
		s.namespaces = append(s.namespaces, d.Namespace)
	default:
		var mac v1alpha1.MacNode
		err := c.Get(ctx, client.ObjectKey{Name: named}, &mac)
		if apierrors.IsNotFound(err) || strings.Contains(named, "/") {
			return nil, fmt.Errorf("%w; no Mac has that name either", modelErr)
		}
		if err != nil {
			return nil, a.apiError("read Mac "+named, err)
		}
		s.macs[named] = true
	}
	_, replicas, err := a.fleetObjects(ctx, c)
	if err != nil {
		return nil, err
	}
	for i := range replicas {
		r := &replicas[i]
		if d != nil && r.Spec.DeploymentRef.UID != string(d.UID) || d == nil && r.Spec.NodeName != named {
			continue
		}
		s.replicas[r.Namespace+"/"+r.Name] = true
		s.namespaces = append(s.namespaces, r.Namespace)
		if r.Spec.NodeName != "" {
			s.macs[r.Spec.NodeName] = true
			s.engines = append(s.engines, macLog{title: "engine of " + r.Namespace + "/" + r.Name + " on Mac " + r.Spec.NodeName, mac: r.Spec.NodeName,
				engine: v1alpha1.EngineFile(string(r.UID), r.Spec.Epoch)})
		}
	}
	slices.SortFunc(s.engines, func(x, y macLog) int { return cmp.Compare(x.title, y.title) })
	slices.Sort(s.namespaces)
	s.namespaces = slices.Compact(s.namespaces)
	return s, nil
}

// about says whether an Event is about the subject. A replica that is gone is
// known by the name of its deployment in its own.
func (s *subject) about(e *corev1.Event) bool {
	o := e.InvolvedObject
	switch o.Kind {
	case "MacNode":
		return s.macs[o.Name]
	case "ModelDeployment":
		return o.Namespace == s.deployment.Namespace && o.Name == s.deployment.Name && o.Name != ""
	case "ModelReplica":
		ended := strings.LastIndexByte(o.Name, '-')
		return s.replicas[o.Namespace+"/"+o.Name] ||
			s.deployment.Name != "" && o.Namespace == s.deployment.Namespace && ended > 0 && o.Name[:ended] == s.deployment.Name
	}
	return false
}

// printEvents prints the existing Events, then new ones.
func (a logsCommand) printEvents(ctx context.Context, c *cluster, s *subject, follow bool) error {
	var all []corev1.Event
	var watches []watch.Interface
	for _, namespace := range s.namespaces {
		var list corev1.EventList
		if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return a.apiError("list Events of "+namespace, err)
		}
		all = append(all, list.Items...)
		if !follow {
			continue
		}
		w, err := c.Watch(ctx, &corev1.EventList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
		if err != nil {
			return a.apiError("watch Events of "+namespace, err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	slices.SortStableFunc(all, func(x, y corev1.Event) int {
		return cmp.Or(when(&x).Compare(when(&y)), cmp.Compare(x.Name, y.Name))
	})
	printed := 0
	for i := range all {
		if !s.about(&all[i]) {
			continue
		}
		printed++
		if err := a.line(&all[i]); err != nil {
			return err
		}
	}
	if printed == 0 && !follow {
		fmt.Fprintln(a.Err, "No Events found.")
	}
	return a.tellOn(ctx, s, watches)
}

// tellOn prints Events as they come, until the person or the API server ends it.
func (a logsCommand) tellOn(ctx context.Context, s *subject, watches []watch.Interface) error {
	if len(watches) == 0 {
		return nil
	}
	person := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan watch.Event)
	ended := make(chan struct{}, len(watches))
	for _, w := range watches {
		go func() {
			defer func() { ended <- struct{}{} }()
			for e := range w.ResultChan() {
				select {
				case events <- e:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for {
		select {
		case <-person.Done():
			return nil
		case <-ended:
			if person.Err() != nil {
				return nil
			}
			return errors.New("the API server ended the watch; run the command again to continue")
		case e := <-events:
			if e.Type == watch.Error {
				return a.apiError("watch Events", apierrors.FromObject(e.Object))
			}
			event, is := e.Object.(*corev1.Event)
			if !is || e.Type == watch.Deleted || !s.about(event) {
				continue
			}
			if err := a.line(event); err != nil {
				return err
			}
		}
	}
}

// when an Event happened the last time.
func when(e *corev1.Event) time.Time {
	switch {
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	default:
		return e.CreationTimestamp.Time
	}
}

// told is one Event as -o json prints it.
type told struct {
	Time      time.Time `json:"time"`
	Type      string    `json:"type"`
	Reason    string    `json:"reason"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Count     int32     `json:"count"`
	Message   string    `json:"message"`
}

func (a logsCommand) line(e *corev1.Event) error {
	o := e.InvolvedObject
	if a.json() {
		return json.NewEncoder(a.Out).Encode(told{when(e).UTC(), e.Type, e.Reason, o.Kind, o.Namespace, o.Name, max(1, e.Count), e.Message})
	}
	times := ""
	if e.Count > 1 {
		times = fmt.Sprintf(" (%d times)", e.Count)
	}
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	_, err := fmt.Fprintf(a.Out, "%s  %-7s  %s  %s %s: %s%s\n", when(e).UTC().Format(time.RFC3339), picture.Plain(e.Type), picture.Plain(e.Reason), picture.Plain(o.Kind), picture.Plain(name), picture.Plain(e.Message), times)
	return err
}
