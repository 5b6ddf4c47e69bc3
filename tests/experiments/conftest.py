import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of one node with one core, on this machine; tests may add nodes to it."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'equipoise[ray]'")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()
