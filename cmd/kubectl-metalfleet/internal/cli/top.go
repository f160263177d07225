package cli

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/inventory"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const topLong = `Shows the memory of each Mac as bars, followed by its engines with their footprint
and limit. On a terminal it updates until Ctrl-C; with --once, with -o json, or if
the output is not a terminal, it prints once. Macs report changed figures every
30 s.`

// redrawEvery bounds how often the picture is drawn.
const redrawEvery = 500 * time.Millisecond

// topCommand shows the figures of Macs, once or continuously.
type topCommand struct{ *app }

func (a topCommand) top() *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use: "top [MAC]", Short: "Monitor the memory of Macs and engines", Long: topLong, Args: atMostOne("MAC"),
		Example:           "  kubectl metalfleet top\n  kubectl metalfleet top mac-studio-1 --once",
		ValidArgsFunction: a.complete(macNames),
	}
	c.Flags().BoolVar(&once, "once", false, "print once and exit")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		only := strings.Join(args, "")
		if only != "" {
			if _, err := a.mac(cmd.Context(), cl, only); err != nil {
				return err
			}
		}
		if once || !a.OutTerminal || a.json() {
			return a.topOnce(cmd.Context(), cl, only)
		}
		return a.follow(cmd.Context(), cl, only)
	}
	a.outputFlag(c)
	return c
}

func atMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("%s takes at most one %s, got %d", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

func (a topCommand) topOnce(ctx context.Context, c client.Reader, only string) error {
	list, err := a.listed(ctx, c, only)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(map[string]any{"macs": list})
	}
	frame, err := a.frame(list)
	if err != nil {
		return err
	}
	_, err = a.Out.Write(frame)
	return err
}

// listed reads the Macs, or the one that is asked for.
func (a topCommand) listed(ctx context.Context, c client.Reader, only string) ([]inventory.Mac, error) {
	macs, replicas, err := a.fleetObjects(ctx, c)
	if err != nil {
		return nil, err
	}
	list := inventory.Of(macs, replicas)
	if only != "" {
		list = slices.DeleteFunc(list, func(m inventory.Mac) bool { return m.Name != only })
	}
	return list, nil
}

// frame draws all Macs, a line between them.
func (a topCommand) frame(list []inventory.Mac) ([]byte, error) {
	var b bytes.Buffer
	if len(list) == 0 {
		b.WriteString("The fleet has no Macs.\n")
	}
	for i := range list {
		if i > 0 {
			b.WriteString("\n")
		}
		if err := inventory.Bars(&b, &list[i], a.ink()); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// follow draws whenever something changed, from a cache that watches. A watch
// that fails is begun again by itself; the picture says so meanwhile.
func (a topCommand) follow(ctx context.Context, c *cluster, only string) error {
	// What cannot be read at all is said at once: a cache would try for ever.
	if _, err := a.listed(ctx, c, only); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	changed := make(chan struct{}, 1)
	signal := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var trouble lastError
	watched, err := cache.New(c.config, cache.Options{Scheme: scheme(), DefaultTransform: cache.TransformStripManagedFields(),
		DefaultWatchErrorHandler: func(_ context.Context, _ *toolscache.Reflector, err error) { trouble.set(err); signal() }})
	if err != nil {
		return a.apiError("watch the fleet", err)
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { trouble.set(nil); signal() },
		UpdateFunc: func(any, any) { trouble.set(nil); signal() },
		DeleteFunc: func(any) { trouble.set(nil); signal() },
	}
	running.Go(func() { _ = watched.Start(ctx) })
	for _, o := range []client.Object{&v1alpha1.MacNode{}, &v1alpha1.ModelReplica{}} {
		informer, err := watched.GetInformer(ctx, o)
		if err != nil {
			return a.apiError("watch the fleet", err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch the fleet: %w", err)
		}
	}
	if !watched.WaitForCacheSync(ctx) {
		return nil // Ctrl-C before the first picture
	}
	return a.redraw(ctx, watched, only, changed, &trouble)
}

// redraw draws until the context ends, which is no failure: a person pressed
// Ctrl-C.
func (a topCommand) redraw(ctx context.Context, from client.Reader, only string, changed <-chan struct{}, trouble *lastError) error {
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for {
		list, err := a.listed(ctx, from, only)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		frame, err := a.frame(list)
		if err != nil {
			return err
		}
		if _, err := a.Out.Write(a.screen(frame, trouble.get(), a.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		select { // never more often than this
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// screen is a frame as a terminal is given it: cleared, cut to its height, and
// above it the time and what is wrong.
func (a topCommand) screen(frame []byte, trouble error, now time.Time) []byte {
	head := "metalfleet, " + now.Format(time.TimeOnly) + ", press Ctrl-C to exit"
	if trouble != nil {
		head += "; " + a.ink().Bad("the API server is unreachable, showing older data: ") + picture.Plain(trouble.Error())
	}
	lines := strings.Split(strings.TrimRight(head+"\n"+string(frame), "\n"), "\n")
	if _, height, err := a.Size(); err == nil && height > 1 && len(lines) > height-1 {
		more := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("... %d more lines; pass MAC to show a single Mac", more))
	}
	return []byte("\x1b[H\x1b[2J" + strings.Join(lines, "\n") + "\n")
}

// lastError is what a watch failed with, until it works again.
type lastError struct {
	mu  sync.Mutex
	err error // guarded by mu
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
