package skips

import "testing"

func TestSilent(t *testing.T) { t.Skip() }

func TestBrief(t *testing.T) { t.Skip("later") }

func TestNow(t *testing.T) { t.SkipNow() }

func TestHonest(t *testing.T) { t.Skip("needs a Mac with Metal") }
