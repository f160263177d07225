package explain

import (
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// Draw writes the story in sentences.
func (s *Story) Draw(to io.Writer, now time.Time, ink picture.Ink) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s is %s: %s replicas ready, stage: %s\n", s.Namespace, s.Name, s.word(ink), s.Count, s.Stage)
	fmt.Fprintf(&b, "Source: %s\n", picture.Plain(s.Source))
	if h := s.Holdup; h != nil {
		fmt.Fprintf(&b, "Blocked by: %s\n", picture.Plain(h.sentence()))
		if h.Meaning != "" {
			fmt.Fprintf(&b, "Meaning: %s\n", h.Meaning)
		}
		fmt.Fprintf(&b, "Since: %s\n", since(h.Since, now))
		next := h.Next
		if next == "" {
			next = "none, it continues automatically"
		}
		fmt.Fprintf(&b, "Next step: %s\n", next)
	}
	for _, n := range s.Notes {
		fmt.Fprintf(&b, "Note: %s\n", picture.Plain(n))
	}
	if len(s.Replicas) > 0 {
		b.WriteString("\n")
		t := picture.Table{}
		t.Row("REPLICA", "MAC", "STAGE", "FOR", "BLOCKED BY")
		for _, r := range s.Replicas {
			age, why := "", ""
			if r.Holdup != nil {
				why = r.Holdup.Reason + ": " + r.Holdup.Message
				if r.Holdup.Since != nil {
					age = picture.Age(r.Holdup.Since.Time, now)
				}
			}
			t.Row(r.Name, r.Mac, string(r.Stage), age, why)
		}
		if err := t.Write(&b); err != nil {
			return err
		}
	}
	if s.About != "" {
		fmt.Fprintf(&b, "\nMacs (%s):\n", picture.Plain(s.About))
		t := picture.Table{}
		t.Row("MAC", "RESULT")
		for _, m := range s.Macs {
			t.Row(m.Name, m.Verdict)
		}
		if len(s.Macs) == 0 {
			b.WriteString("there is no MacNode yet; join a Mac\n")
		} else if err := t.Write(&b); err != nil {
			return err
		}
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func (s *Story) word(ink picture.Ink) string {
	switch {
	case s.Stage == StageDraining:
		return ink.Warn("being deleted")
	case s.Stage == StageZero || s.Stage == StageSuspended:
		return ink.Warn(string(s.Stage))
	case s.Ready && len(s.Notes) == 0:
		return ink.Good("ready")
	case s.Ready:
		return ink.Warn("ready")
	case s.Available:
		return ink.Warn("available, but not as its spec says")
	default:
		return ink.Bad("not ready")
	}
}

func (h *Holdup) sentence() string {
	out := h.Reason
	if h.Message != "" {
		out += ": " + h.Message
	}
	if h.Of != "" {
		out = h.Of + ", " + out
	}
	return out
}

func since(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), picture.Age(t.Time, now))
}
