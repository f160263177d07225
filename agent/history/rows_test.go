package history

import "testing"

// The histories of one behaviour each. TestHistories plays the others.

func TestP1P4HundredRequestsCauseOneLoad(t *testing.T) { play(t, "p1_hundred_requests_one_load") }

func TestP4AHoldThatIsNotUsedYetKeepsItsEngine(t *testing.T) { play(t, "p4_acquire_then_evict") }

func TestP9TheVictimCoversTheDeficit(t *testing.T) { play(t, "p9_victims") }

func TestP10AnIdleModelGoesAfterItsTime(t *testing.T) { play(t, "p10_idle_time") }

func TestP11WhatIsAlwaysResidentIsNoVictim(t *testing.T) { play(t, "p11_pinned") }

func TestP12P13FiveModelsOnOneMac(t *testing.T) { play(t, "p12_p13_admission") }

func TestP13APromiseCountsWhateverGaugesSay(t *testing.T) { play(t, "p13_gauges_read_low") }

func TestM3M4SoftPressureAndBack(t *testing.T) { play(t, "m3_m4_soft_and_back") }

func TestM5HardPressureClimbsItsLadder(t *testing.T) { play(t, "m5_hard_ladder") }

func TestM5AnEmergencyEndsTheWorstOffendersWork(t *testing.T) { play(t, "m5_emergency") }

func TestM5AnEngineOverItsOwnLimitIsDealtWithAlone(t *testing.T) { play(t, "m5_over_its_own_limit") }

func TestM3P20PressureUpEvictDownReturn(t *testing.T) {
	play(t, "m3_loop_pressure_up_evict_down_return")
}

func TestM13ForeignBytesCountAndAreShown(t *testing.T) { play(t, "m13_foreign_bytes") }

func TestM2AFailedProbeStopsNothing(t *testing.T) { play(t, "m2_failed_probe") }

func TestM6Invariant9AnEngineLoadedLateHasLimitsWithinOnePoll(t *testing.T) {
	play(t, "m6_loaded_late")
}

func TestP17TheMacIsLookedAtUntilItHasItsBytesBack(t *testing.T) { play(t, "p17_settle_verified") }

func TestP17K18WiredBytesThatNobodyOwnsStopStarts(t *testing.T) { play(t, "p17_settle_stranded") }

func TestP19P20P24OthersAtWorkEndTheLook(t *testing.T) { play(t, "p19_p20_p24_indeterminate") }

func TestP15P16AStuckStopClimbsTheLadder(t *testing.T) { play(t, "p15_p16_stuck_stop") }

func TestK18AfterAKillTheMacIsLookedAtTwice(t *testing.T) { play(t, "k18_kill_then_check") }

func TestP25ALoadIsCancelledByPressure(t *testing.T) { play(t, "p25_load_cancelled") }

func TestP26Invariant8FailedWorkLeavesNothing(t *testing.T) { play(t, "p26_k18_residue") }

func TestM1P26GaugesThatDisagreeAreReported(t *testing.T) { play(t, "m1_p26_gauges_disagree") }

func TestInvariant1Invariant4ABurstOfEvictionsStopsNoStream(t *testing.T) { play(t, "burst_of_ten") }

func TestInvariant5Invariant6AnAgentRestartFinishesAnUnload(t *testing.T) {
	play(t, "agent_restart_mid_unload")
}

func TestG13G14HeadroomIsAskedForOnce(t *testing.T) { play(t, "g13_headroom") }

func TestP2P7P8WhatIsKnownOfAnEntry(t *testing.T) { play(t, "p2_p7_p8_what_is_known") }

func TestM10OrdersChangeWhileEnginesGo(t *testing.T) { play(t, "m10_orders_change_while_engines_go") }

func TestInvariant3AReservationThatChangesIsPromisedAnew(t *testing.T) {
	play(t, "invariant3_reservation_changes")
}
