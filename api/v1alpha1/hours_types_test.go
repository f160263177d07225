//go:build !race

package v1alpha1

import (
	"testing"
	"time"
	_ "time/tzdata"
)

func TestHoursContainWhatTheySay(t *testing.T) {
	night := Hours{Start: "22:00", End: "05:30", TimeZone: "Europe/Berlin"}
	weekend := Hours{Days: []Weekday{"Sat", "Sun"}, Start: "20:00", End: "04:00"}
	office := Hours{Days: []Weekday{"Mon"}, Start: "09:00", End: "17:00", TimeZone: "UTC"}
	for name, tc := range map[string]struct {
		hours   Hours
		now     string
		open    bool
		changes string
	}{
		"before midnight":                   {hours: night, now: "2026-01-15T21:00:00Z", open: true, changes: "2026-01-16T04:30:00Z"},
		"after midnight":                    {hours: night, now: "2026-01-15T04:29:59Z", open: true, changes: "2026-01-15T04:30:00Z"},
		"the end is not in them":            {hours: night, now: "2026-01-15T04:30:00Z", open: false, changes: "2026-01-15T21:00:00Z"},
		"the summer time of the zone":       {hours: night, now: "2026-07-15T20:00:00Z", open: true, changes: "2026-07-16T03:30:00Z"},
		"the night in which clocks change":  {hours: night, now: "2026-03-28T21:00:00Z", open: true, changes: "2026-03-29T03:30:00Z"},
		"Sunday's hours on Monday":          {hours: weekend, now: "2026-05-04T03:00:00Z", open: true, changes: "2026-05-04T04:00:00Z"},
		"not those of Friday":               {hours: weekend, now: "2026-05-02T03:00:00Z", open: false, changes: "2026-05-02T20:00:00Z"},
		"the next ones are in some days":    {hours: weekend, now: "2026-05-04T04:00:00Z", open: false, changes: "2026-05-09T20:00:00Z"},
		"the next ones are in seven days":   {hours: office, now: "2026-05-04T17:00:00Z", open: false, changes: "2026-05-11T09:00:00Z"},
		"a day of the week, at their start": {hours: office, now: "2026-05-04T09:00:00Z", open: true, changes: "2026-05-04T17:00:00Z"},
	} {
		now, err := time.Parse(time.RFC3339, tc.now)
		if err != nil {
			t.Fatal(err)
		}
		open, changes, err := tc.hours.Open(now)
		if got := changes.UTC().Format(time.RFC3339); err != nil || open != tc.open || got != tc.changes {
			t.Errorf("%s: open %v, changes %s, %v; want %v, %s", name, open, got, err, tc.open, tc.changes)
		}
	}
	for name, bad := range map[string]Hours{
		"a zone":                      {Start: "01:00", End: "02:00", TimeZone: "Mars/Phobos"},
		"the zone of the machine":     {Start: "01:00", End: "02:00", TimeZone: "Local"},
		"a time of day":               {Start: "25:00", End: "02:00"},
		"a day that an API refuses":   {Start: "01:00", End: "02:00", Days: []Weekday{"Monday"}},
		"a path outside of the zones": {Start: "01:00", End: "02:00", TimeZone: "../../etc/passwd"},
	} {
		if _, _, err := bad.Open(time.Now()); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
