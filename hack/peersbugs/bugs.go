package main

// Parts of ours.
const (
	fleet     = "Fleet and failure"
	placement = "Placement and memory"
	gateway   = "Gateway"
	rollout   = "Rollout"
	engines   = "Engines and their agent"
	weights   = "Distribution"
	access    = "Identity and access"
)

// bugs are all of them, by part.
func bugs() []bug {
	return []bug{
		{fleet, "LLMKube #663", "a host that was off for weeks was still ready", []string{"controllers/macnode.TestSilenceIsJudgedByTheOperatorsClock", "controllers.TestReplicasOfAGoneMacAreMadeElsewhere"}, ""},
		{fleet, "LLMKube #657", "one error of the API lost a host's registration", []string{"agent/register.TestTheLeaseIsRenewedEveryTenSecondsAndSoonerAfterAFailure", "agent/report.TestAFailedWriteIsTriedAgainWithTheNewest"}, ""},
		{fleet, "LLMKube", "three failed polls of the API made the agent exit, and every engine with it", []string{"controllers.TestAPIServerPauseMovesNothing", "agent.TestAStoppedAgentSaysSoAndItsEnginesLive", "agent.TestAKilledAgentsEnginesAreAdopted"}, ""},
		{fleet, "LLMKube", "an error while one object was read was taken for its deletion", []string{"agent/register.TestOnlyWhatWasPositivelyReadIsDelivered", "controllers/modeldeployment.TestWhatCannotBeReadIsNotMissing", "agent/desired.TestOldOrdersDoNotComeBack"}, ""},
		{fleet, "LLMKube #524", "two agents claimed one service", []string{"agent.TestTwoAgentsNeverShareAStateFolder", "agent/pool.TestP1TwoEpochsNeverRunAtOnce", "gateway/proxy.TestAMacThatAnswersWithAnotherNameIsNotTrusted"}, ""},
		{fleet, "LLMKube #891", "endpoints were mirrored into a second slice; a second host overwrote the first", []string{"gateway/route.TestRandomHistoriesEndInTheSameTable", "gateway/route.TestReplicasThatMayBePicked"}, ""},
		{fleet, "kip #107", "an agent that restarted for longer than its lease killed what ran", []string{"agent.TestAKilledAgentsEnginesAreAdopted", "agent/pool.TestWithoutOrdersAnAdoptedEngineServesOn", "controllers/macnode.TestTimeWithoutTheAPIServerDoesNotCount"}, ""},
		{fleet, "exo #2194", "ghosts of an earlier installation held placement up", []string{"controllers.TestDeleteAndAMacThatComesBack", "controllers/identity.TestAMacThatIsGoneHoldsNothingUp", "controllers/fleet.TestReportsOfAnotherEpochAreNotBelieved"}, ""},
		{fleet, "users of Macs", "a room of Macs that slept at night had all of its models moved", []string{"controllers.TestTheBrakeMovesNothing", "controllers/macnode.TestTheBrakeHoldsWhereMoreThanHalfFallSilentAtOnce"}, ""},

		{placement, "LLMKube", "each model was admitted alone: five of 36 GiB on a host with 64 GiB", []string{"agent/history.TestP12P13FiveModelsOnOneMac", "controllers.TestReservationsAreCumulative", "controllers/placement/plan.TestAssumptionsAddUpAndCanBeTakenBack"}, ""},
		{placement, "LLMKube #640", "an estimate that failed let everything in", []string{"agent/memory.TestAdmitRefusesAnUnknownSize", "metal/footprint.TestP12UnknownDimensionsAreRefused", "controllers/placement/plan.TestEveryMacHasItsOwnReason"}, ""},
		{placement, "LLMKube", "heads that share keys and values were not known: 64 GiB estimated where 16 are needed", []string{"metal/footprint.TestP12EstimateCountsTrueKVHeads"}, ""},
		{placement, "exo #1834", "a split that is not possible gave no reason", []string{"controllers.TestTooLargeForEveryMac", "controllers/placement/plan.TestEveryMacHasItsOwnReason"}, ""},
		{placement, "LLMKube", "pressure never went back to normal, so what was evicted stayed away for ever", []string{"agent/history.TestM3P20PressureUpEvictDownReturn", "agent/memory.TestM3WholeLoop"}, ""},
		{placement, "LLMKube", "the victim was looked up by the wrong key: 1 GiB went and 60 GiB stayed", []string{"agent/history.TestP9TheVictimCoversTheDeficit", "agent/memory.TestP9P14TheVictimIs"}, ""},
		{placement, "LLMKube", "freed bytes were not measured, and their counter never moved", []string{"agent.TestFreedBytesAreCountedByReason", "controllers.TestScaleDownCountsFreedBytesOnce"}, ""},
		{placement, "LLMKube", "memory was read as resident size, which does not see Metal's", []string{"agent/probe.TestAMacsPagesAreReadByTheirOffsets", "agent/probe.TestSystemPassesTheSuite"}, ""},
		{placement, "AI Gateway #2460", "objects that set quotas bound nothing", []string{"controllers.TestTheRulesOfAnAdministratorBoundANamespace", "controllers/placement/plan.TestRulesBoundANamespace"}, ""},

		{gateway, "GIE #2117", "a request that waited while no endpoint was there did not get the one that came", []string{"gateway/proxy.TestAWaiterGetsTheEndpointThatAppearsLater"}, ""},
		{gateway, "llm-d-router #2100", "stale load data stopped dispatch, or flooded one endpoint", []string{"gateway/pick.TestRandomLoadsAreBounded", "gateway/proxy.TestLeastLoadedIsPicked"}, ""},
		{gateway, "llm-d-router #2295, #2137", "a request that was silent for ten minutes was not counted any more", []string{"gateway/proxy.TestASilentRequestStaysCounted"}, ""},
		{gateway, "KubeAI #519, #528", "a prefix that many share kept to one replica", []string{"gateway/pick.TestAHotPrefixUsesTheWholeFleet"}, ""},
		{gateway, "KubeAI #447", "few virtual nodes spread requests unevenly", []string{"gateway/pick.TestEqualsShareEqually", "gateway/pick.TestConversationsStayAndGatewaysAgree"}, ""},
		{gateway, "AIBrix #842", "prefixes alone decided, and load did not", []string{"gateway/pick.TestABusyHomeIsPassedOver", "gateway/pick.TestRandomLoadsAreBounded"}, ""},
		{gateway, "production-stack #601, AIBrix #541", "an endpoint that was going got new requests", []string{"gateway/route.TestReplicasThatMayBePicked", "gateway/route.TestMacsThatTakeRequests"}, ""},
		{gateway, "production-stack #749", "a peer that was dead held requests for minutes", []string{"gateway/proxy.TestADeadMacIsLeftAlone", "gateway/proxy.TestAMacThatHangsIsNoticedByPings", "gateway/proxy.TestAMacThatFallsSilentIsLeftOutThoughNoRequestRuns"}, ""},
		{gateway, "AI Gateway #2394", "a long stream passed its limit unseen", []string{"gateway/proxy.TestAStreamIsCountedWhileItRuns", "gateway/proxy.TestOverTheTokensPerMinuteOfAKey"}, ""},
		{gateway, "LLMKube", "a proxy did not look at model and answered with another one", []string{"gateway/proxy.TestWhatNoAgentNeedsToSee", "agent/serve.TestReplicasAreFoundByHeaderOrName"}, ""},
		{gateway, "llm-d", "a request whose endpoint died was lost though nothing had been sent", []string{"gateway/proxy.TestAnotherReplicaIsTriedWhileNothingWasSent", "gateway/proxy.TestWaitersOutliveADeadMac"}, ""},

		{rollout, "LWS #225", "a controller that restarted began a rollout", []string{"controllers.TestIdleFleetAndRestartWriteNothing"}, ""},
		{rollout, "LWS #567", "a rollout that was stuck never went on", []string{"controllers/modeldeployment.TestPlanConverges", "controllers.TestRefusedReplicaMovesElsewhere"}, ""},
		{rollout, "LLMKube", "some fields changed nothing: a list of hashed fields kept by hand", []string{"controllers/fleet.TestEveryFieldOfTheEngineChangesItsHash", "metal/wire.TestConfigHashSeesEveryField"}, ""},
		{rollout, "ollama-operator #77", "fields that override were ignored", []string{"controllers.TestChangeRollsOutByRevision", "controllers.TestResidencyReachesARunningReplicaWhereItIs"}, ""},
		{rollout, "LWS #280, #508", "a group was updated by half; a group that lost a host was not rebuilt", nil, "not built yet: an engine is one process on one Mac, there are no groups"},
		{rollout, "LWS #724, KAITO #1132", "an update in place took the only replica away", nil, "not built yet: surge and swap under load come with the rollout"},

		{engines, "mlx-lm #983, #1129, #1255", "HTTP was answered and nothing was generated", []string{"agent/pool.TestAnEngineThatHangsCountsAsBusyAndIsThenDealtWith", "agent/pool.TestALoadThatStopsIsGivenUp"}, ""},
		{engines, "mlx-lm #1390", "a cache of prompts grew until memory was out", []string{"agent/pool.TestM5HardPressureTakesWhatIsRememberedOfPrompts", "metal/engine.TestM1TheBudgetOfPrefixesIsNotTheBackEnds"}, ""},
		{engines, "LLMKube #1543", "an engine of which nobody knew whether it was idle counted as idle", []string{"agent/pool.TestAnEngineThatHangsCountsAsBusyAndIsThenDealtWith", "agent/memory.TestP13AnIdleModelThatGaugesDoNotSeeCounts"}, ""},
		{engines, "ollama-operator #118", "a delete left bytes and processes", []string{"controllers.TestDeleteAMacTakesAllOfItBack", "agent/pool.TestOneOrderBecomesOneServedMeasuredFreedEngine", "agent.TestAWithdrawalThatAnAgentMissedGivesBackTheDisk"}, ""},
		{engines, "exo #2047", "an instance that never became ready waited for ever", []string{"agent/pool.TestAProgramThatDoesNotStartFailsInBounds", "agent/pool.TestALoadThatStopsIsGivenUp", "agent/pool.TestRestartsAreBounded"}, ""},
		{engines, "LLMKube", "ready was reported before the model was there", []string{"controllers/modelreplica.TestReadyIsDerived", "agent/pool.TestP4TheHoldIsThereWhenTheEngineIsReady"}, ""},
		{engines, "LLMKube", "figures of an agent were on a loopback address, where the cluster could not read them", []string{"agent.TestEachReplicasMemoryIsScrapedByItsName", "agent.TestAScrapeTellsAGuardThatCannotAct"}, ""},
		{engines, "LLMKube", "a host's address was guessed, and a bridge of virtual machines won", []string{"cmd/agent.TestTheAdvertisedAddress"}, ""},

		{weights, "LLMKube", "a download inside the one loop of work held deletes and other starts up", []string{"agent/pool.TestADownloadThatEndedMeanwhileIsNotEnded", "agent.TestADownloadThatIsNotWantedAnyMoreGivesBackItsDisk"}, ""},
		{weights, "several", "replicas that start together fetched the same file several times", []string{"agent/store.TestEnsureDownloadsOnceForAll"}, ""},
		{weights, "several", "a file that was damaged on the way was served", []string{"agent/store.TestWrongDownloadLeavesNothing", "agent/store.TestDamagedWeightsAreFetchedAnew"}, ""},

		{access, "BYO-host", "a certificate was signed for a name that only began as it should", []string{"controllers.TestAttackForgedRequests", "controllers.TestAttackOthersAskOurSigner", "controllers.TestAttackAJoinTokenIsUsedTwice", "controllers.TestCertificatesSpeakForTheirNameAlone"}, ""},
		{access, "exo #1833", "anybody could delete without saying who", []string{"agent/serve.TestAttackStraightAtAMac", "controllers.TestAttackAnAgentWithTooManyRights"}, ""},
	}
}
