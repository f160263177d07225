//go:build !race

package join

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAnEnrolmentIsReadAsItWasStored(t *testing.T) {
	want := Enrolment{Names: "lab-*", Count: 2, Approval: true, Credential: "JTI=1", Expires: time.Unix(1_800_000_000, 0).UTC(),
		Uses: map[string]Use{"lab-1": {Key: "SHA256:x", Request: "uid"}}}
	got, err := ReadEnrolment(want.Data())
	if err != nil || !reflect.DeepEqual(got, want) || got.Left() != 1 {
		t.Errorf("%+v, %v; %d left", got, err, got.Left())
	}
	for key, value := range map[string]string{KeyCount: "many", KeyNames: "Lab", KeyExpires: "tomorrow", "mac.lab-1": "x"} {
		data := maps.Clone(want.Data())
		data[key] = []byte(value)
		if e, err := ReadEnrolment(data); err == nil {
			t.Errorf("with %s=%q: %+v", key, value, e)
		}
	}
	for _, count := range []int{0, -1, MaxEnrolled + 1} {
		if (Enrolment{Names: "*", Count: count}).Check() == nil {
			t.Errorf("%d Macs are admitted", count)
		}
	}
}

func TestNamesOfAnEnrolment(t *testing.T) {
	for _, tc := range []struct {
		pattern, mac string
		want         bool
	}{
		{"lab-*", "lab-1", true}, {"lab-*", "lab-", true}, {"lab-*", "xlab-1", false}, {"lab-*", "lab", false},
		{"*", "any", true}, {"lab-*-mini", "lab-7-mini", true}, {"lab-*-mini", "lab-7-maxi", false}, {"lab-1", "lab-1", true}, {"lab-1", "lab-11", false},
		{strings.Repeat("*", 52), "any", true},
	} {
		if err := CheckNames(tc.pattern); err != nil {
			t.Error(err)
		}
		if got := (Enrolment{Names: tc.pattern}).Allows(tc.mac); got != tc.want {
			t.Errorf("%s allows %s: %v", tc.pattern, tc.mac, got)
		}
	}
	for _, bad := range []string{"", "Lab-*", "lab-?", "[a-z]*", `lab\*`, "a/b", strings.Repeat("a", 53)} {
		if CheckNames(bad) == nil {
			t.Errorf("the pattern %q is accepted", bad)
		}
	}
}

func TestARequestOfAnEnrolmentIsInASlot(t *testing.T) {
	for name, want := range map[string]string{
		EnrolmentRequest("lab", 0): "lab", EnrolmentRequest("lab-2", 99): "lab-2", "metalfleet-enrol-lab": "", "metalfleet-enrol-lab.7": "", "metalfleet-enrol-lab.100": "",
		RequestName(Account("lab")): "", "metalfleet-enrol-.07": "", "x-metalfleet-enrol-lab.07": "", "metalfleet-enrol--.07": "",
	} {
		if got, ok := CutEnrolmentRequest(name); got != want || ok != (want != "") {
			t.Errorf("%s is of %q, %v", name, got, ok)
		}
	}
}

func TestATokenIsForAMacOrAnEnrolment(t *testing.T) {
	o := token(t)
	o.Mac, o.Enrolment, o.Approval = "", "lab", true
	text, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(text); err != nil || got.Enrolment != "lab" || !got.Approval || got.Mac != "" {
		t.Errorf("%v, %v", got, err)
	}
	o.Mac = "studio"
	if _, err := o.Encode(); err == nil {
		t.Error("a token for both was made")
	}
}
