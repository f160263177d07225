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

const clearCacheLong = `Has a Mac give back what its caches hold, and says how many bytes came back: what
its engines remember of prompts and their pooled memory, then every block in the
cache on its disk. Requests that run go on. --tier memory or --tier disk means one
of the two.`

// tiers by the word of --tier.
var tiers = map[string]v1alpha1.CacheTier{"all": v1alpha1.CacheTierAll, "memory": v1alpha1.CacheTierMemory, "disk": v1alpha1.CacheTierDisk}

func (a *app) clearCache() *cobra.Command {
	var tier string
	var timeout time.Duration
	c := &cobra.Command{
		Use: "clear-cache MAC", Short: "Clear the caches of one Mac and say what came back", Long: clearCacheLong, Args: exactly(1, "one MAC"),
		Example:           "  kubectl metalfleet clear-cache mac-mini-2\n  kubectl metalfleet clear-cache mac-mini-2 --tier disk",
		ValidArgsFunction: a.complete(macNames),
	}
	c.Flags().StringVar(&tier, "tier", "all", "all, memory or disk")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the Mac's answer; 0: not at all")
	_ = c.RegisterFlagCompletionFunc("tier", cobra.FixedCompletions([]string{"all", "memory", "disk"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if tiers[tier] == "" {
			return usagef("--tier is %q, want all, memory or disk", tier)
		}
		if timeout < 0 {
			return usagef("--timeout is %s, want a time like 2m, or 0", timeout)
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
			return a.apiError("order Mac "+args[0]+" to clear its caches", err)
		}
		if timeout == 0 {
			fmt.Fprintf(a.Out, "Mac %s is ordered to clear its caches (request %s)\n", args[0], order.Request)
			return nil
		}
		return a.awaitCleared(cmd.Context(), cl, args[0], order.Request, timeout)
	}
	a.outputFlag(c)
	return c
}

// awaitCleared waits for the answer to an order, and prints it.
func (a *app) awaitCleared(ctx context.Context, c *cluster, name, request string, timeout time.Duration) error {
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
			return fmt.Errorf("clear the caches of Mac %s: another order took the place of this one; `kubectl metalfleet status %s -o json` has its answer", name, name)
		}
		select {
		case <-ctx.Done():
			return unanswered(name)
		case <-tick.C:
		}
	}
}

func unanswered(name string) error {
	return fmt.Errorf("clear the caches of Mac %s: it did not answer in time (--timeout); the order stays, and it follows it once it is heard from: `kubectl metalfleet nodes` says whether it is, and an agent older than the operator does not know this order", name)
}

// showCleared says what came back; what could not be cleared is a failure.
func (a *app) showCleared(name string, c *v1alpha1.CacheCleared) error {
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
			parts = []string{"nothing: it keeps no cache on disk"}
		}
		fmt.Fprintf(a.Out, "Mac %s gave back %s\n", name, strings.Join(parts, " and "))
	}
	if c.Message != "" {
		return fmt.Errorf("not all caches of Mac %s are cleared: %s", name, c.Message)
	}
	return nil
}
