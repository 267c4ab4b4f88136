"""Agents of two versions in one pool, under engines whose clients are of either: sharing goes on among all of them."""

from cluster.engines import Member
from cluster.images import AGENT_IMAGE, EARLIER_IMAGE, IN_CLEAR
from cluster.kube import wait_for
from cluster.standins import NAME, StandIns, share

BLOCKS = 8


def replace_agent(standins: StandIns, member: Member, image: str) -> None:
    restarts, incarnation = standins.agent_restarts(member.pod.name), member.status().incarnation
    standins.set_agent_image(member.pod.name, image)

    def back() -> bool:
        status = member.status()
        new = standins.agent_restarts(member.pod.name) == restarts + 1 and status.incarnation != incarnation
        return new and status.attached and status.state == "Ready(warm)"

    wait_for(f"{member.pod.name} with {image}, and its engine", back, 180)


def images(members: list[Member], *found: str) -> dict[str, str]:
    return {member.pod.name: image for member, image in zip(members, found, strict=True)}


def test_agents_and_clients_of_two_versions_share_among_each_other(standins: StandIns) -> None:
    first, second = standins.create(2, pool_spec=IN_CLEAR | {"agent": {"image": EARLIER_IMAGE}})
    standins.heat("hot", BLOCKS)
    # upgraded: what is made from now on is of the newer version, and warms from the older one
    standins.set_pool({"agent": {"image": AGENT_IMAGE}})
    standins.wait_new_pods(AGENT_IMAGE)
    standins.scale(NAME, 3)
    (third,) = (m for m in standins.wait_ready(3) if m.pod.name not in (first.pod.name, second.pod.name))
    assert (third.status().state, third.status().warm.loaded_blocks) == ("Ready(warm)", BLOCKS)
    members = [first, second, third]
    assert standins.agent_images() == images(members, EARLIER_IMAGE, EARLIER_IMAGE, AGENT_IMAGE)
    for turn, holder in enumerate((first, third)):
        share(holder, [m for m in members if m is not holder], f"mixed-{turn}", BLOCKS)
    # the other two pairs of client and agent, under the engines as they run
    replace_agent(standins, first, AGENT_IMAGE)
    replace_agent(standins, third, EARLIER_IMAGE)
    assert standins.agent_images() == images(members, AGENT_IMAGE, EARLIER_IMAGE, EARLIER_IMAGE)
    for turn, holder in enumerate(members):
        share(holder, [m for m in members if m is not holder], f"crossed-{turn}", BLOCKS)
    assert [m.pod for m in standins.members() if m.pod.restarts] == []
    standins.wait_status(phase="Ready", ready="3/3")
