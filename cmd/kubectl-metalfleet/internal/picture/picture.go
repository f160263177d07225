// Package picture draws text: tables whose columns stand under one another,
// bars, ages, colours where they are wanted.
//
// It owns how things look and nothing of what they are. It refuses to guess at
// a terminal: whether to colour is said by its caller; and what others wrote has
// no way to speak to the terminal itself.
//
// Start reading at Table; Plain is for every word that is not our own.
package picture

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// unknown stands where a figure is not known: never a zero.
const unknown = "-"

// Table has columns that are as wide as their widest cell, two blanks apart,
// and no blanks at the end of a line.
type Table struct {
	// Indent begins each line.
	Indent string
	rows   [][]string
}

// Row adds a line, plain; the first one is the head.
func (t *Table) Row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = unknown
		}
		cells[i] = Plain(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// Write prints the table.
func (t *Table) Write(to io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		var b strings.Builder
		b.WriteString(t.Indent)
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		if _, err := fmt.Fprintln(to, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Plain is what others wrote, on one line: what would move a terminal's cursor,
// colour it or turn the order of its signs becomes a question mark. Messages of
// conditions come from Macs, and those of Macs from servers of models.
func Plain(s string) string { return strings.Map(plain, s) }

// Lines is Plain for a text of several lines.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return plain(r)
	}, s)
}

func plain(r rune) rune {
	switch {
	case unicode.IsControl(r), r == utf8.RuneError, unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
		return '?'
	}
	return r
}

// Bar draws part of whole in width characters, followed by the share. A part that
// exceeds the whole fills the bar, and the share shows by how much. An unknown
// whole has no bar.
func Bar(part, whole int64, width int) string {
	if whole <= 0 || part < 0 {
		return unknown
	}
	full := min(width, int(float64(part)/float64(whole)*float64(width)+0.5))
	return fmt.Sprintf("[%s%s] %3.0f %%", strings.Repeat("#", full), strings.Repeat(".", width-full), 100*float64(part)/float64(whole))
}

// Age is how long ago something was, as kubectl writes it: "3m12s".
func Age(since, now time.Time) string {
	if since.IsZero() {
		return unknown
	}
	return duration.HumanDuration(max(0, now.Sub(since)))
}

// Count writes a number with its noun: "1 Mac", "2 Macs".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Ink colours words, where it is on.
type Ink bool

// Good is for what is as it should be.
func (i Ink) Good(s string) string { return i.paint("32", s) }

// Warn is for text that may need attention.
func (i Ink) Warn(s string) string { return i.paint("33", s) }

// Bad is for what does not work.
func (i Ink) Bad(s string) string { return i.paint("31", s) }

func (i Ink) paint(code, s string) string {
	if !i {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
