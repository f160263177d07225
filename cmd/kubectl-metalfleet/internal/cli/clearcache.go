package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

const clearCacheLong = `Clears the caches of a Mac and reports the freed bytes: first the prefix caches of
its engines and their pooled memory, then all blocks in its cache on disk. Running
requests continue. Use --tier memory or --tier disk to clear only one of them.`

// tiers by the word of --tier.
var tiers = map[string]v1alpha1.CacheTier{"all": v1alpha1.CacheTierAll, "memory": v1alpha1.CacheTierMemory, "disk": v1alpha1.CacheTierDisk}

func (a macCommand) clearCache() *cobra.Command {
	var tier string
	var timeout time.Duration
	c := &cobra.Command{
		Use: "clear-cache MAC", Short: "Clear the caches of a Mac", Long: clearCacheLong, Args: exactly(1, "one MAC"),
		Example:           "  kubectl metalfleet clear-cache mac-mini-2\n  kubectl metalfleet clear-cache mac-mini-2 --tier disk",
		ValidArgsFunction: a.complete(macNames),
	}
	c.Flags().StringVar(&tier, "tier", "all", "caches to clear: all, memory or disk")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the Mac to clear its caches; 0 does not wait")
	_ = c.RegisterFlagCompletionFunc("tier", cobra.FixedCompletions([]string{"all", "memory", "disk"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if tiers[tier] == "" {
			return usagef("--tier is %q, want all, memory or disk", tier)
		}
		if timeout < 0 {
			return usagef("--timeout is %s, want a duration such as 2m, or 0", timeout)
		}
		cl, err := a.connect()
		if err != nil {
			return err
		}
		mac, err := a.mac(cmd.Context(), cl, args[0])
		if err != nil {
			return err
		}
		order := v1alpha1.CacheClear{Request: strings.ToLower(rand.Text()), Tier: tiers[tier]}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"clearCache": order}})
		if err != nil {
			return err
		}
		if err := cl.Patch(cmd.Context(), mac, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
			return a.apiError("request Mac "+args[0]+" to clear its caches", err)
		}
		if timeout == 0 {
			fmt.Fprintf(a.Out, "Requested Mac %s to clear its caches (request %s)\n", args[0], order.Request)
			return nil
		}
		return a.awaitCleared(cmd.Context(), cl, args[0], order.Request, timeout)
	}
	a.outputFlag(c)
	return c
}

// awaitCleared waits for the answer to an order, and prints it.
func (a macCommand) awaitCleared(ctx context.Context, c *cluster, name, request string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		mac, err := a.mac(ctx, c, name)
		switch {
		case ctx.Err() != nil:
			return unanswered(name)
		case err != nil:
			return err
		case mac.Status.CacheCleared != nil && mac.Status.CacheCleared.Request == request:
			return a.showCleared(name, mac.Status.CacheCleared)
		case mac.Spec.ClearCache == nil || mac.Spec.ClearCache.Request != request:
			return fmt.Errorf("clear the caches of Mac %s: another request replaced this one; see its result with `kubectl metalfleet status %s -o json`", name, name)
		}
		select {
		case <-ctx.Done():
			return unanswered(name)
		case <-tick.C:
		}
	}
}

func unanswered(name string) error {
	return fmt.Errorf("clear the caches of Mac %s: timed out (--timeout); the request stays, and the Mac follows it once it is reachable. Check with `kubectl metalfleet nodes` that the Mac is ready, and that its agent is not older than the operator", name)
}

// showCleared prints how much was freed; a cache that could not be cleared is a
// failure.
func (a macCommand) showCleared(name string, c *v1alpha1.CacheCleared) error {
	if a.json() {
		if err := a.printJSON(c); err != nil {
			return err
		}
	} else {
		var parts []string
		if c.MemoryBytes != nil {
			parts = append(parts, fmt.Sprintf("%s of memory from %s", v1alpha1.FormatBytes(*c.MemoryBytes), picture.Count(len(c.Engines), "engine")))
		}
		if c.DiskBytes != nil {
			parts = append(parts, v1alpha1.FormatBytes(*c.DiskBytes)+" of disk")
		}
		if len(parts) == 0 {
			parts = []string{"nothing: it has no cache on disk"}
		}
		fmt.Fprintf(a.Out, "Mac %s freed %s\n", name, strings.Join(parts, " and "))
	}
	if c.Message != "" {
		return fmt.Errorf("not all caches of Mac %s were cleared: %s", name, c.Message)
	}
	return nil
}
