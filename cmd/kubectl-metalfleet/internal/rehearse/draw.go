package rehearse

import (
	"fmt"
	"io"
	"strings"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// Draw writes the answer in sentences and tables.
func (a *Answer) Draw(to io.Writer, ink picture.Ink) error {
	var b strings.Builder
	would := "would be created"
	if a.Exists {
		would = "would be changed"
	}
	fmt.Fprintf(&b, "ModelDeployment %s/%s is valid and %s: %s\n", a.Namespace, a.Name, would, a.word(ink))
	if a.Verdict != Fits && len(a.Replicas) == 0 {
		fmt.Fprintf(&b, "Reason: %s: %s\n", a.Reason, picture.Plain(a.Message))
	}
	if m := a.Model; m != nil {
		kind := m.Architecture
		if m.Quantization != "" {
			kind += " " + m.Quantization
		}
		fmt.Fprintf(&b, "Model: %s, from %s\n", picture.Plain(kind), m.From)
	}
	a.drawNeed(&b)
	if err := a.drawReplicas(&b); err != nil {
		return err
	}
	if err := a.drawMacs(&b); err != nil {
		return err
	}
	for i, n := range a.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "Note: %s\n", picture.Plain(n))
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func (a *Answer) word(ink picture.Ink) string {
	switch a.Verdict {
	case Fits:
		return ink.Good("it fits")
	case Unknown:
		return ink.Warn("it is unknown whether it fits")
	default:
		return ink.Bad("it does not fit")
	}
}

func (a *Answer) drawNeed(b *strings.Builder) {
	n := a.Need
	if n == nil {
		return
	}
	fmt.Fprintf(b, "Each replica needs an estimated %s for %d tokens, %d concurrent requests, %d KV cache tokens:\n",
		v1alpha1.FormatBytes(n.TotalBytes), n.Context.MaxTokens, n.Context.MaxConcurrentRequests, n.Context.KVCacheTokens)
	t := picture.Table{Indent: "  "}
	for _, term := range []struct {
		name  string
		bytes int64
	}{
		{"weights", n.WeightsBytes}, {"KV cache", n.KVBytes}, {"step buffers", n.TransientBytes}, {"pooled", n.PooledBytes}, {"process", n.OverheadBytes},
	} {
		t.Row(term.name, v1alpha1.FormatBytes(term.bytes))
	}
	_ = t.Write(b) // a strings.Builder does not fail
	if n.ReservedBytes != n.TotalBytes {
		fmt.Fprintf(b, "  memory.limit reserves %s\n", v1alpha1.FormatBytes(n.ReservedBytes))
	}
	if n.OnDemand {
		b.WriteString("  OnDemand: the first request loads the model, and it shares memory with other OnDemand models\n")
	}
}

func (a *Answer) drawReplicas(b *strings.Builder) error {
	if len(a.Replicas)+len(a.Removed) == 0 {
		return nil
	}
	b.WriteString("\n")
	t := picture.Table{}
	t.Row("REPLICA", "MAC", "RESULT")
	for _, r := range a.Replicas {
		what := r.Message
		switch {
		case r.Stays && r.Mac != "" && what == "":
			what = "stays"
		case r.Mac == "":
			what = r.Reason + ": " + r.Message
		}
		t.Row(r.Name, r.Mac, what)
	}
	for _, name := range a.Removed {
		t.Row(name, "", "removed once its replacement is ready")
	}
	return t.Write(b)
}

func (a *Answer) drawMacs(b *strings.Builder) error {
	if len(a.Macs) == 0 {
		return nil
	}
	subject := "for the first replica without a Mac"
	if a.Verdict == Unknown {
		subject = "current state"
	}
	fmt.Fprintf(b, "\nMacs, %s:\n", subject)
	t := picture.Table{}
	t.Row("MAC", "FREE", "RESULT")
	for _, m := range a.Macs {
		free := ""
		if m.FreeBytes > 0 {
			free = v1alpha1.FormatBytes(m.FreeBytes)
		}
		t.Row(m.Name, free, m.Verdict)
	}
	return t.Write(b)
}
