//go:build !race

package jinja

import (
	"context"
	"testing"
	"time"
)

// The wanted texts are those of Python's datetime.strftime.
func TestWeeksAndHoursOfOtherDays(t *testing.T) {
	for want, date := range map[string]time.Time{
		"52 53 01 2025 25 20 365 1 1 12 12  0 AM 24": time.Date(2024, 12, 30, 0, 0, 0, 0, time.UTC),
		"01 00 52 2022 22 20 001 7 0 12 12 12 PM 23": time.Date(2023, 1, 1, 12, 0, 0, 0, time.UTC),
		"01 00 53 2020 20 20 003 7 0 11 11 23 PM 21": time.Date(2021, 1, 3, 23, 59, 59, 0, time.UTC),
		"52 52 53 2020 20 20 366 4 4 01  1 13 PM 20": time.Date(2020, 12, 31, 13, 7, 9, 0, time.FixedZone("", 3600)),
		"09 09 09 2000 00 20 060 2 2 12 12  0 AM 00": time.Date(2000, 2, 29, 0, 5, 0, 0, time.UTC),
	} {
		tmpl, err := Parse("{{ strftime_now('%U %W %V %G %g %C %j %u %w %I %l %k %p %y') }}")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(context.Background(), Input{Now: date}); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}
