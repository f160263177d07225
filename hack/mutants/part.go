package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// shardSize is about how many entries CI tries for one commit.
const shardSize = 40

// part is one of count parts; the first has index 1.
type part struct {
	index, count int
}

// of deals the entries out, so that neighbours, which are about as slow, fall
// into different parts.
func (p part) of(all []entry) []entry {
	var out []entry
	for i, e := range all {
		if i%p.count == p.index-1 {
			out = append(out, e)
		}
	}
	return out
}

// choosePart reads all, i/n or shard.
func choosePart(ctx context.Context, text, root string, entries int) (part, error) {
	switch {
	case text == "all":
		return part{1, 1}, nil
	case text == "shard":
		cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
		cmd.Dir = root
		commit, err := cmd.Output()
		if err != nil {
			return part{}, fmt.Errorf("part shard: the commit: %w", err)
		}
		return shard(strings.TrimSpace(string(commit)), entries)
	}
	i, n, ok := strings.Cut(text, "/")
	index, err1 := strconv.Atoi(i)
	count, err2 := strconv.Atoi(n)
	if !ok || err1 != nil || err2 != nil || index < 1 || index > count {
		return part{}, fmt.Errorf("part %q: wants all, shard or i/n with i from 1 to n", text)
	}
	return part{index, count}, nil
}

// shard picks a part by the commit: the same commit always tries the same
// entries, and a row of commits tries them all.
func shard(commit string, entries int) (part, error) {
	if len(commit) < 8 {
		return part{}, fmt.Errorf("part shard: %q is not a commit", commit)
	}
	n, err := strconv.ParseUint(commit[:8], 16, 64)
	if err != nil {
		return part{}, fmt.Errorf("part shard: %q is not a commit: %w", commit, err)
	}
	count := max(1, (entries+shardSize-1)/shardSize)
	return part{int(n%uint64(count)) + 1, count}, nil
}
