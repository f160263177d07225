package v1alpha1

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Weekday is a day of the week.
// +kubebuilder:validation:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
type Weekday string

// Hours are a part of the day that recurs every week.
// +kubebuilder:validation:XValidation:rule="self.start != self.end",message="start and end must differ, for example 22:00 and 05:00"
type Hours struct {
	// days are the days on which the hours begin, for example [Sat, Sun].
	// Default: every day. Valid values are Mon, Tue, Wed, Thu, Fri, Sat and Sun.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Weekday `json:"days,omitempty"`
	// start is when the hours begin, as HH:MM, for example "22:00".
	// +required
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// end is when the hours end, as HH:MM, for example "05:00". An end before the
	// start is on the next day.
	// +required
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`
	// timeZone is the IANA name of a time zone, for example Europe/Berlin.
	// Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	TimeZone string `json:"timeZone,omitempty"`
}

// QuietHours are hours in which a Mac downloads more slowly.
type QuietHours struct {
	Hours `json:",inline"`
	// downloadRate is the maximum rate of all downloads together in these hours,
	// in bytes per second, at least 64Ki, for example 5M. It applies in addition
	// to settings.downloadRate.
	// +required
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[+]?([0-9]{1,19}([.][0-9]{0,9})?|[.][0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$') && !quantity(string(self)).isLessThan(quantity('64Ki'))",message="quietHours.downloadRate must be at least 64Ki, in bytes per second, for example 5M; write at most 19 digits, 9 decimals and a unit such as Gi, M or e9"
	DownloadRate resource.Quantity `json:"downloadRate"`
}

// Location returns the time zone of the hours; an error if this machine does not
// know it.
func (h *Hours) Location() (*time.Location, error) {
	zone, err := time.LoadLocation(h.TimeZone)
	if err != nil || h.TimeZone == "Local" {
		return nil, fmt.Errorf("unknown time zone %q; use an IANA name, for example Europe/Berlin", h.TimeZone)
	}
	return zone, nil
}

// Open reports whether the hours contain a time, and when that changes next. It
// returns an error if the time zone is unknown or a time of day is invalid.
func (h *Hours) Open(now time.Time) (open bool, changes time.Time, err error) {
	zone, err := h.Location()
	if err != nil {
		return false, time.Time{}, err
	}
	start, err1 := time.Parse("15:04", h.Start)
	end, err2 := time.Parse("15:04", h.End)
	if err1 != nil || err2 != nil {
		return false, time.Time{}, fmt.Errorf("hours from %q to %q: want HH:MM, for example 22:00", h.Start, h.End)
	}
	local := now.In(zone)
	// The hours that began yesterday may still be open, and with one day of the
	// week the next ones may begin in seven days.
	for day := -1; day <= 7; day++ {
		at := func(clock time.Time, more int) time.Time {
			return time.Date(local.Year(), local.Month(), local.Day()+day+more, clock.Hour(), clock.Minute(), 0, 0, zone)
		}
		from, until := at(start, 0), at(end, 0)
		if !end.After(start) {
			until = at(end, 1)
		}
		noon := time.Date(local.Year(), local.Month(), local.Day()+day, 12, 0, 0, 0, time.UTC)
		if len(h.Days) > 0 && !slices.Contains(h.Days, Weekday(noon.Weekday().String()[:3])) || !until.After(now) {
			continue
		}
		if now.Before(from) {
			return false, from, nil
		}
		return true, until, nil
	}
	return false, time.Time{}, fmt.Errorf("hours on unknown days %v; use Mon, Tue, Wed, Thu, Fri, Sat or Sun", h.Days)
}
