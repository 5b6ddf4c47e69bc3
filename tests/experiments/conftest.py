import pytest


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster on this machine with one node and one core; tests may add nodes."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install 'equipoise[ray]'")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()
